"""The peers in environments of their own: they want other versions than ours, and know nothing of us."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LLM_ANNOTATOR = "llm-annotator[openai]==0.18.0"
OLLAMA_CLASSIFIER = "ollama-classifier==0.6.0"
FIT = "import sys; sys.exit(not (3, 12) <= sys.version_info < (3, 15))"


@pytest.fixture(scope="session")
def llm_annotator_python(tmp_path_factory):
    """A Python that has `llm-annotator`. Its extra `openai` pulls neither torch nor vllm.

    DISPATCHER_PEER_PYTHON names one that is there already.
    """
    if given := os.environ.get("DISPATCHER_PEER_PYTHON"):
        return given
    return _installed(_fit_python(), tmp_path_factory.mktemp("llm-annotator"), LLM_ANNOTATOR)


@pytest.fixture(scope="session")
def ollama_classifier_python(tmp_path_factory):
    """A Python that has `ollama-classifier`."""
    return _installed(sys.executable, tmp_path_factory.mktemp("ollama-classifier"), OLLAMA_CLASSIFIER)


def _installed(python, directory, requirement):
    subprocess.run([python, "-m", "venv", directory / "venv"], check=True, timeout=60)
    own = directory / "venv" / "bin" / "python"
    subprocess.run([own, "-m", "pip", "install", "-q", requirement], check=True, timeout=300)
    return own


def _fit_python():
    installed = Path.home().glob(".pyenv/versions/3.1[2-4].*/bin/python")
    for candidate in (sys.executable, "python3.12", "python3.13", "python3.14", *sorted(installed)):
        # A version manager's shim may be there and not work.
        if shutil.which(candidate) and not subprocess.run([candidate, "-c", FIT], check=False).returncode:
            return candidate
    required = os.environ.get("DISPATCHER_REQUIRE_SERVICES") == "1"
    return (pytest.fail if required else pytest.skip)("no Python from 3.12 to 3.14")

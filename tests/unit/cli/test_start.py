import subprocess
import sys

import pytest

import dispatcher

SLOW_TO_IMPORT = ("aiohttp", "httpx2", "pydantic", "rich", "sqlalchemy", "structlog")


def test_the_command_lines_help_does_not_wait_for_what_only_a_run_needs():
    code = f"import sys, dispatcher.cli.commands; print([n for n in {SLOW_TO_IMPORT} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", dispatcher.__all__)
def test_every_public_name_can_be_had(name):
    assert getattr(dispatcher, name).__module__.startswith("dispatcher.")


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = dispatcher.nonsense

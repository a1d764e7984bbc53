"""Manifests as users get them: kustomizations built, the chart rendered."""

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES, CHART = DEPLOY / "kubernetes", DEPLOY / "helm" / "dispatcher"
HELMS = {
    *("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"),
    *("checksum/config", "helm.sh/hook", "helm.sh/hook-delete-policy", "helm.sh/resource-policy"),
}
"""Labels and annotations that only Helm needs."""


def required(what, found):
    """What a test needs; skips, or fails where nothing may skip."""
    if not found:
        must = os.environ.get("DISPATCHER_REQUIRE_SERVICES") == "1"
        (pytest.fail if must else pytest.skip)(f"{what} is not installed")
    return found


def module(name):
    """A module of the dependency group `deploy`."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return required(f"{name} (dependency group deploy)", None)


@cache
def kubectl():
    return required("kubectl", shutil.which("kubectl"))


def kustomized(directory):
    """All objects of a kustomization."""
    built = subprocess.run(
        [kubectl(), "kustomize", str(directory)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (built.returncode, built.stderr) == (0, "")
    return [each for each in yaml.safe_load_all(built.stdout) if each]


def own_overlay(directory: Path, resource, *components):
    """What a user writes beside a clone: a kustomization over one of ours, with components and an image."""
    clone = directory / "clone"
    if not clone.exists():
        shutil.copytree(KUBERNETES, clone)
    own = directory / "own"
    own.mkdir(exist_ok=True)
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "gpu",
        "resources": [f"../clone/overlays/{resource}"],
        "components": [f"../clone/components/{each}" for each in components],
        "images": [{"name": "dispatcher", "newName": "example/dispatcher", "newTag": "1.2.3"}],
    }
    (own / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return own


def chart(values=None, name="dispatcher", namespace="default"):
    """All objects of a release, hooks included."""
    loaded = module("helm_python").Chart.load(str(CHART))
    loaded.validate_schema(loaded.merge_values(values or {}))
    files = loaded.render(values or {}, name=name, namespace=namespace)
    texts = (text for path, text in files.items() if not path.endswith(".txt"))
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def notes(values):
    """What an installation says at its end."""
    files = (
        module("helm_python").Chart.load(str(CHART)).render(values, name="dispatcher", namespace="default")
    )
    (text,) = (text for path, text in files.items() if path.endswith("NOTES.txt"))
    return text


def by_name(objects: Iterable[dict]):
    """kind/name -> object. Each must be there once."""
    objects = list(objects)
    named = {
        f"{each['kind']}/{each['metadata'].get('namespace', '')}/{each['metadata']['name']}": each
        for each in objects
    }
    assert len(named) == len(objects)
    return named


def comparable(objects):
    """Without what only one of the two tools adds: hashes in names, and Helm's labels and annotations."""
    text = yaml.safe_dump(list(objects))
    text = re.sub(r"(name: (?:dispatcher|dispatcher-job|vllm))-[0-9a-z]{10}\b", r"\1", text)
    found = yaml.safe_load(text)
    for each in found:
        _plain(each)
        _plain_config(each)
        _plain_account(each)
    return by_name(found)


def _plain(content):
    """Everywhere below, too."""
    below = content.values() if isinstance(content, dict) else content
    for item in below:
        if isinstance(item, dict | list):
            _plain(item)
    if not isinstance(content, dict):
        return
    for key in ("labels", "annotations"):
        if isinstance(content.get(key), dict):
            content[key] = {name: text for name, text in content[key].items() if name not in HELMS}
            if not content[key]:
                del content[key]
    content.pop("imagePullPolicy", None)
    for key in ("env", "volumes"):
        if isinstance(content.get(key), list):
            content[key].sort(key=lambda each: each["name"])


def _plain_config(content):
    """A ConfigMap's settings as they are read, and without the component, which one of ours has not."""
    if content["kind"] == "ConfigMap":
        content["metadata"]["labels"].pop("app.kubernetes.io/component", None)
        for name, text in content["data"].items():
            if name.endswith(".yaml"):
                content["data"][name] = yaml.safe_load(text)


def _plain_account(content):
    """One account for all, which the overlay `job` has for itself: a release goes as a whole."""
    match content["kind"]:
        case "ServiceAccount" | "Role" | "RoleBinding" | "NetworkPolicy":
            places = [content["metadata"], content.get("roleRef", {}), *content.get("subjects", ())]
        case "Job":
            spec = content["spec"]["template"]["spec"]
            if "serviceAccountName" in spec:
                spec["serviceAccountName"] = spec["serviceAccountName"].removesuffix("-job")
            return
        case _:
            return
    for place in places:
        if "name" in place:
            place["name"] = place["name"].removesuffix("-job")


def pod_specs(objects):
    """Every pod template's spec, with the name of its object."""
    for each in objects:
        template = each.get("spec", {}).get("template") if isinstance(each.get("spec"), dict) else None
        if template and "spec" in template:
            yield each["metadata"]["name"], template["spec"]

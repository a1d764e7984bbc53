"""A pod's container as a process: command, environment and files as its manifest gives them."""

import re
from dataclasses import dataclass
from pathlib import Path

import yaml
from manifests import pod_specs


@dataclass(frozen=True)
class Container:
    """What to start, where, and told what."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    directory: Path
    files: Path
    """What is `/` to the container."""

    def change(self, path, change):
        """Have `change` alter a settings file: for what no process on loopback can be given."""
        own = self.files / path.lstrip("/")
        content = yaml.safe_load(own.read_text())
        change(content)
        own.write_text(yaml.safe_dump(content))


def container_of(objects, name, secrets, files):
    """The first container of an object's pods, its volumes being directories below `files`.

    `secrets` holds the items of each Secret; one that is missing, and not optional, fails the test.
    """
    (spec,) = (spec for found, spec in pod_specs(objects) if found == name)
    container = spec["containers"][0]
    places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    configs = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    moved = re.compile(rf"(?<![\w./])(?:{'|'.join(map(re.escape, places.values()))})(?![\w.])")

    def here(text):
        return moved.sub(lambda found: f"{files}{found[0]}", text)

    for volume in spec["volumes"]:
        directory = Path(here(places[volume["name"]]))
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in configs.get(volume.get("configMap", {}).get("name"), {}).items():
            (directory / file).write_text(here(text))
    environment = {variable: here(text) for variable, text in _environment(container, secrets)}
    directory = Path(here(container.get("workingDir", "/tmp")))  # noqa: S108  # the container's own
    return Container(tuple(map(here, container["args"])), environment, directory, files)


def _environment(container, secrets):
    for source in container.get("envFrom", ()):
        reference = source["secretRef"]
        if reference["name"] in secrets or not reference.get("optional"):
            yield from secrets[reference["name"]].items()
    for variable in container["env"]:
        if "valueFrom" not in variable:
            yield variable["name"], variable["value"]
            continue
        reference = variable["valueFrom"]["secretKeyRef"]
        items = secrets[reference["name"]]
        if reference["key"] in items or not reference.get("optional"):
            yield variable["name"], items[reference["key"]]

"""The places that settings are read from: arguments, the environment, a file. None of them judges values."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dispatcher.config.document import Document, Place, parse_yaml
from dispatcher.config.faults import nearest
from dispatcher.config.settings import sections, setting_places
from dispatcher.errors import Fault

PREFIX = "DISPATCHER_"

_NO_SETTINGS = frozenset(
    {
        "DISPATCHER_URL",
        "DISPATCHER_SERVER_API_KEY",
        "DISPATCHER_REGISTRATION_TOKEN",
        "DISPATCHER_REQUIRE_SERVICES",
    }
)
"""Variables of the commands to a service, and of the tests."""

_SERVICE_LINK = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)$")
"""What Kubernetes sets in every pod next to a Service called `dispatcher` or `dispatcher-...`.

https://kubernetes.io/docs/tutorials/services/connect-applications-service/#environment-variables
"""


@dataclass(frozen=True, slots=True)
class Source:
    """Settings as one place gives them: by their place in the tree, unvalidated."""

    values: dict[tuple[str, ...], object] = field(default_factory=dict)
    origins: dict[Place, str] = field(default_factory=dict)
    """What to call the spot where a setting, or a part of one, stands."""
    faults: tuple[Fault, ...] = ()


def from_arguments(overrides: Mapping[str, object]) -> Source:
    """Flags and keyword arguments, nested by section. A None is one that was not given."""
    source = _by_place(overrides, lambda _: "arguments")
    values = {place: value for place, value in source.values.items() if value is not None}
    return Source(values, dict.fromkeys(values, "arguments"), source.faults)


def from_environment(environ: Mapping[str, str]) -> Source:
    """Variables such as `DISPATCHER_POOL__STALL_S`. An empty one is not set; `null` means none.

    A `DISPATCHER_` variable that is no setting is a fault: a misspelt one would silently do nothing.
    """
    known = {PREFIX + "__".join(place).upper(): place for place in setting_places()}
    given = {name: text.strip() for name, text in environ.items() if name in known and text.strip()}
    unknown = [
        name
        for name, text in environ.items()
        if name.startswith(PREFIX) and name not in known and not _is_foreign(name, text)
    ]
    return Source(
        {known[name]: None if text == "null" else text for name, text in given.items()},
        {known[name]: name for name in given},
        tuple(Fault(name, f"is not a setting{nearest(name, known)}") for name in unknown),
    )


def from_file(path: Path | None) -> Source:
    """A YAML file; None is an empty one."""
    document = Document() if path is None else _read(path)
    if document.content is None:
        return Source(faults=document.faults)
    if not isinstance(document.content, dict):
        return Source(faults=(Fault(str(path), "must be a mapping of settings, such as `pool: {...}`"),))
    origins = {place: f"{path}:{line}" for place, line in document.lines.items()}
    source = _by_place(document.content, lambda key: origins[key,])
    return Source(source.values, origins, document.faults + source.faults)


def _read(path: Path) -> Document:
    try:
        return parse_yaml(path.read_text(encoding="utf-8-sig"), str(path))
    except OSError as error:
        return Document(faults=(Fault(str(path), f"cannot be read: {error.strerror}"),))
    except UnicodeDecodeError:
        return Document(faults=(Fault(str(path), "is not UTF-8 text"),))


def _by_place(tree: Mapping[str, object], origin: Callable[[str], str]) -> Source:
    """Flatten the sections: an empty one says nothing, and one that is no mapping is a fault."""
    values: dict[tuple[str, ...], object] = {}
    faults: list[Fault] = []
    for key, value in tree.items():
        if key not in sections():
            values[key,] = value
        elif isinstance(value, Mapping):
            values.update({(key, name): item for name, item in value.items()})
        elif value is not None:
            faults.append(Fault(key, f"must be a mapping of settings (from {origin(key)})"))
    return Source(values, faults=tuple(faults))


def _is_foreign(name: str, text: str) -> bool:
    link = name.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", text)
    return name in _NO_SETTINGS or ("__" not in name and bool(link or _SERVICE_LINK.search(name)))

"""YAML with line numbers, read as text: what a scalar means is for the setting it belongs to.

YAML's own guesses (`no` is false, `010` is 8, `1:30` is 90) never reach a setting, so an `api_key: 0123`
stays what it is, and a value means the same in a file as in the environment. Only an unquoted null, `~` or
nothing is special: it means none. What goes into requests as it is (`extra_body`) is no setting: there, an
unquoted scalar is what JSON makes of it, and a text where that is nothing.
"""

import json
from dataclasses import dataclass, field

import yaml

from dispatcher.errors import Fault

Place = tuple[str | int, ...]
"""The way to a value: mapping keys and list positions."""

UNTYPED = "extra_body"
"""The setting whose members have no types of ours."""
_STANDARD = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class Document:
    """What a YAML text holds: None, text, lists and mappings of these, and the line that each stands on."""

    content: object = None
    lines: dict[Place, int] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


def parse_yaml(text: str, name: str) -> Document:
    """Read one YAML document. Every fault is reported, as `name:line`; a syntax error ends the reading."""
    reader = _Reader(name)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        content = None if node is None else reader.value(node, ())
    except yaml.YAMLError as error:
        return Document(faults=(_syntax_fault(error, name),))
    except RecursionError:
        return Document(faults=(Fault(name, "is nested too deeply"),))
    return Document(content, reader.lines, tuple(reader.faults))


class _Reader:
    """Turns YAML nodes into plain values, and notes their lines."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.lines: dict[Place, int] = {}
        self.faults: list[Fault] = []

    def value(self, node: yaml.Node, place: Place) -> object:
        self.lines.setdefault(place, node.start_mark.line + 1)
        if not node.tag.startswith(_STANDARD):
            self._fault(node, "tags (such as !env) are not supported")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, position)) for position, item in enumerate(node.value)]
        if node.tag == f"{_STANDARD}null":
            return None
        is_quoted = not isinstance(node, yaml.ScalarNode) or node.style is not None
        return node.value if is_quoted or UNTYPED not in place else _as_json(node.value)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, object]:
        values: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key, str):
                self._fault(key_node, "a key must be plain text")
                continue
            if key in values:
                self._fault(key_node, f"{key} is set twice")
            self.lines[*place, key] = key_node.start_mark.line + 1
            values[key] = self.value(value_node, (*place, key))
        return values

    def _fault(self, node: yaml.Node, message: str) -> None:
        self.faults.append(Fault(f"{self._name}:{node.start_mark.line + 1}", message))


def _as_json(scalar: str) -> object:
    try:
        return json.loads(scalar, parse_constant=str)
    except ValueError:
        return scalar


def _syntax_fault(error: yaml.YAMLError, name: str) -> Fault:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    where = name if mark is None else f"{name}:{mark.line + 1}"
    # Only these two name no value of the file: an alias or a tag may be an unquoted secret.
    if isinstance(error, yaml.scanner.ScannerError | yaml.parser.ParserError):
        return Fault(where, f"is not valid YAML: {error.problem}")
    return Fault(where, "is not valid YAML: expected one document of plain text, without unknown aliases")

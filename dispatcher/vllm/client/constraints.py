"""Constraints on answers, in the spelling that a server's version understands. Pure.

vLLM ignores fields that it does not know, and answers with 200 and free text. `guided_choice` and its like
were removed in 0.12.0 (its page "Structured Outputs"); `structured_outputs` came in 0.11.0 (its pull request
22772). So a constraint is put into the server's spelling, and refused where it has none.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dispatcher.errors import ConfigError, ConstraintIgnoredError, Fault, InputError

Version = tuple[int, int]
"""A release's first two numbers."""

GUIDED_UNTIL: Final[Version] = (0, 12)
"""The first version without `guided_*`."""
STRUCTURED_FROM: Final[Version] = (0, 11)
"""The first version with `structured_outputs`."""
STRUCTURED: Final = "structured_outputs"
GUIDED: Final = {
    "guided_choice": "choice",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "guided_whitespace_pattern": "whitespace_pattern",
}
"""The older fields, and what each is called inside of `structured_outputs`."""

_RELEASE: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.\d+)*(?:\.post\d+)?(?:\+.*)?", re.ASCII)


def parse_version(text: str | None) -> Version | None:
    """Read `0.11.2` or `0.12.0+cpu`. None where it does not tell what the server understands.

    That is for pre-releases too: `0.11.2.dev278` was built after a removal that 0.11.2 does not have.
    """
    match = _RELEASE.fullmatch(text.strip()) if text else None
    return (int(match[1]), int(match[2])) if match else None


def one_of(labels: Sequence[str]) -> dict[str, Any]:
    """The constraint of an answer to one of these texts."""
    return {STRUCTURED: {"choice": list(labels)}}


def constrains(body: Mapping[str, Any]) -> bool:
    """Whether a body has a constraint whose spelling depends on the version."""
    return any(body.get(name) is not None for name in (STRUCTURED, *GUIDED))


def spelled(
    body: Mapping[str, Any], version: Version | None, server: str, *, checked: bool
) -> Mapping[str, Any]:
    """The body with its constraint as this version understands it.

    `checked`: the answer will be held against the constraint. Otherwise an unknown version is refused, as
    its free text would pass for an answer. Raises ConstraintIgnoredError, and InputError for what is no
    constraint.
    """
    if not isinstance(body.get(STRUCTURED) or {}, Mapping):
        raise InputError(f"{STRUCTURED} must be a mapping")
    if version is None:
        if not checked:
            raise ConstraintIgnoredError(
                f"{server} does not tell which vLLM it is, and might silently ignore the constraint: "
                "give the client version="
            )
        return body
    if version >= GUIDED_UNTIL:
        return _as_structured(body)
    return body if version >= STRUCTURED_FROM else _as_guided(body, server)


def _as_structured(body: Mapping[str, Any]) -> Mapping[str, Any]:
    guided = {new: body[old] for old, new in GUIDED.items() if body.get(old) is not None}
    if not guided:
        return body
    rest = {name: value for name, value in body.items() if name not in GUIDED}
    return {**rest, STRUCTURED: {**guided, **(body.get(STRUCTURED) or {})}}


def _as_guided(body: Mapping[str, Any], server: str) -> Mapping[str, Any]:
    structured = body.get(STRUCTURED)
    if structured is None:
        return body
    names = {new: old for old, new in GUIDED.items()}
    given = {name: value for name, value in structured.items() if value is not None}
    if unknown := sorted(given.keys() - names.keys()):
        raise ConstraintIgnoredError(
            f"{server} is older than vLLM 0.11 and would silently ignore {STRUCTURED}.{unknown[0]}"
        )
    rest = {name: value for name, value in body.items() if name != STRUCTURED}
    return {**rest, **{names[name]: value for name, value in given.items()}}


def checked_labels(labels: Sequence[object]) -> tuple[str, ...]:
    """The labels, if they can be told apart. Raises ConfigError with every fault."""
    if isinstance(labels, str):
        raise ConfigError((Fault("labels", "must be a list of texts, not one text"),))
    found: list[str] = []
    faults = [] if labels else [Fault("labels", "must hold at least one")]
    for position, label in enumerate(labels):
        if not isinstance(label, str) or not label.strip():
            faults.append(Fault(f"labels[{position}]", "must be a text that is not blank"))
        elif label in found:
            faults.append(Fault(f"labels[{position}]", f"repeats {label!r}"))
        else:
            found.append(label)
    if faults:
        raise ConfigError(tuple(faults))
    return tuple(found)


def bare_label(text: str, labels: Sequence[str], finish_reason: str | None, server: str) -> str:
    """The label that an answer is. Raises ConstraintIgnoredError where it is none: free text never passes.

    White space around it does not count where it leaves no doubt: some tokenisers drop a leading blank.
    """
    if text in labels:
        return text
    alike = [label for label in labels if label.strip() == text.strip()]
    if len(alike) == 1:
        return alike[0]
    if finish_reason == "length":
        raise ConstraintIgnoredError(f"{server} had no tokens left for a whole label: raise its limit")
    raise ConstraintIgnoredError(f"{server} has answered with none of the labels: it ignores the constraint")

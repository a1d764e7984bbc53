"""Pydantic's errors in the users' words. No value that may be a secret is ever repeated."""

import difflib
from collections.abc import Callable, Collection, Iterator

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dispatcher.config.document import Place

_SHOWN_CHARACTERS_MAX = 60


def explain(
    error: ValidationError, candidates: Callable[[Place], Collection[str]]
) -> Iterator[tuple[Place, str]]:
    """Each thing wrong: its place, and what would be right.

    `candidates` gives the keys that the unknown key at a place may have been meant to be.
    """
    details = error.errors(include_url=False)
    for detail in details:
        place = detail["loc"]
        if detail["type"] == "too_short" and _has_within(place, details):
            continue  # of a list whose items are all faulty, and named
        if detail["type"] == "extra_forbidden":
            yield place, f"is not a setting{nearest(str(place[-1]), candidates(place))}"
        else:
            yield place, f"{_message(detail)}{_shown(detail)}"


def _has_within(place: Place, details: Collection[ErrorDetails]) -> bool:
    return any(len(each["loc"]) > len(place) and each["loc"][: len(place)] == place for each in details)


def dotted(place: Place) -> str:
    """`pool.stall_s`, `servers[2].limit`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


def nearest(name: str, known: Collection[str]) -> str:
    """A suggestion to append to a fault, or nothing."""
    matches = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


_PLAIN = {
    "missing": "is missing",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "tuple_type": "must be a list",
    "too_short": "must not be empty",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}


def _message(detail: ErrorDetails) -> str:
    match detail["type"]:
        case kind if kind in _PLAIN:
            return _PLAIN[kind]
        case "value_error":
            return str(detail["ctx"]["error"])
        case "literal_error":
            return f"must be {detail['ctx']['expected']}"
        case _:
            return (
                detail["msg"].split(", ")[0].replace("Input should", "must").replace("String should", "must")
            )


def _shown(detail: ErrorDetails) -> str:
    place, value = detail["loc"], detail["input"]
    if not isinstance(value, str | int | float) or not _is_public(place):
        return ""
    text = str(value)
    shown = text.isprintable() and text.strip() and len(text) <= _SHOWN_CHARACTERS_MAX
    return f", got {text}" if shown else ""


_SECRETIVE = frozenset({"servers", "dns", "url", "headers", "api_key", "keys", "tokens"})


def _is_public(place: Place) -> bool:
    """Credentials can stand by mistake in a server's URL or headers, or in place of their hashes."""
    return place[-1:] == ("limit",) or not _SECRETIVE.intersection(place)

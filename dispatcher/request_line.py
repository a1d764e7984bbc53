r"""One line of a request file, read strictly: a request, or what is wrong with it.

`parse_request` reads the common case with msgspec, in about 2 microseconds. Whatever that refuses is examined
once more with the standard library, which says exactly what is wrong, or finds nothing wrong: msgspec refuses
lone surrogate escapes (`\ud83d`), which JSON allows and a body may hold.
"""

import json
import re
from enum import StrEnum, auto
from typing import Literal, cast

import msgspec

from dispatcher.jsonl import loads_strictly, raw_members

NESTING_MAX = 500
"""Levels of arrays and objects. Python, here and in vLLM, gives up a little below 1,000."""

ROUTES = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/score",
        "/score",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/pooling",
        "/classify",
        "/tokenize",
    }
)
"""What a request's `url` may be: the JSON POST routes of vLLM 0.32 that answer one body with one body."""


class LineCode(StrEnum):
    """What is wrong with a line of the input. These stand in the report of rejected lines."""

    LINE_TOO_LONG = auto()
    NOT_UTF8 = auto()
    NOT_JSON = auto()
    NESTED_TOO_DEEP = auto()
    NOT_AN_OBJECT = auto()
    CUSTOM_ID_MISSING = auto()
    CUSTOM_ID_NOT_A_STRING = auto()
    CUSTOM_ID_EMPTY = auto()
    CUSTOM_ID_LONE_SURROGATE = auto()
    CUSTOM_ID_DUPLICATE = auto()
    METHOD_NOT_POST = auto()
    URL_UNKNOWN = auto()
    URL_MISMATCHED = auto()
    BODY_MISSING = auto()
    BODY_NOT_AN_OBJECT = auto()
    STREAM_NOT_ALLOWED = auto()
    MODEL_NOT_A_STRING = auto()
    MODEL_LONE_SURROGATE = auto()


class LineFault(msgspec.Struct, frozen=True, gc=False):
    """Why a line is no request, and what would be right. A value, since a file may hold millions of them."""

    code: LineCode
    message: str
    custom_id: str | None = None
    """The line's id, where it has one that can be written."""


class Head(msgspec.Struct, frozen=True, gc=False):
    """What a request line says."""

    custom_id: str
    url: str
    model: str | None
    body: bytes
    """The JSON object's own bytes."""


def parse_request(content: bytes) -> Head | LineFault:
    r"""Read one non-blank line as a request, strictly.

    A body may hold lone surrogate escapes (`\ud83d`): they are passed on as they are. Of keys that repeat
    the last counts, as in Python's json.
    """
    try:
        if not content.isascii():
            content.decode()
        if content.count(b"{") + content.count(b"[") > NESTING_MAX:
            return _examine(content)
        envelope = _ENVELOPES.decode(content)
        settings = _BODIES.decode(envelope.body)
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return _examine(content)
    if settings.stream or not envelope.custom_id or envelope.url not in ROUTES:
        return _examine(content)
    return Head(envelope.custom_id, envelope.url, settings.model, bytes(envelope.body))


def too_long(line_bytes_max: int) -> LineFault:
    """The fault of a line that was not kept."""
    return LineFault(
        LineCode.LINE_TOO_LONG, f"the line is longer than {line_bytes_max} bytes; is a line end missing?"
    )


def shown(value: object) -> str:
    """A value as messages show it: as JSON, and short."""
    text = "missing" if value is None else json.dumps(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


class _Envelope(msgspec.Struct, gc=False):
    custom_id: str
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct, gc=False):
    model: str | None = None
    stream: bool | None = None


_ENVELOPES = msgspec.json.Decoder(_Envelope)
_BODIES = msgspec.json.Decoder(_Body)
# A string without an end reaches to the line's: else every quote in it would be tried anew.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_SHOWN_MAX = 60


def _examine(content: bytes) -> Head | LineFault:
    """Say what is wrong with a line; or read it, where only msgspec was too strict."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        return _not_utf8(content, error.start)
    if _nesting(content) > NESTING_MAX:
        return _nested_too_deep()
    try:
        value = loads_strictly(text)
    except RecursionError:
        return _nested_too_deep()
    except ValueError as error:
        return _not_json(error)
    if not isinstance(value, dict):
        return LineFault(
            LineCode.NOT_AN_OBJECT,
            'not a JSON object; a request is {"custom_id": ..., "method": "POST", "url": ..., "body": {...}}',
        )
    return _find_fault(value) or _head(value, text)


def _not_utf8(content: bytes, at: int) -> LineFault:
    found = f"byte 0x{content[at]:02x} at column {at + 1}"
    return LineFault(LineCode.NOT_UTF8, f"not UTF-8: {found}; write the file as UTF-8")


def _nested_too_deep() -> LineFault:
    return LineFault(
        LineCode.NESTED_TOO_DEEP, f"arrays and objects are nested more than {NESTING_MAX} levels deep"
    )


def _not_json(error: ValueError) -> LineFault:
    found = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
    return LineFault(LineCode.NOT_JSON, f"not JSON: {found}; every line must be one whole JSON object")


def _find_fault(value: dict[str, object]) -> LineFault | None:
    fault = _find_id_fault(value.get("custom_id"))
    if fault:
        return fault
    found = _find_route_fault(value) or _find_body_fault(value.get("body"))
    return found and LineFault(*found, custom_id=str(value["custom_id"]))


def _find_id_fault(custom_id: object) -> LineFault | None:
    if custom_id is None:
        return LineFault(LineCode.CUSTOM_ID_MISSING, "custom_id is missing; give every line one of its own")
    if not isinstance(custom_id, str):
        return LineFault(LineCode.CUSTOM_ID_NOT_A_STRING, "custom_id is not a string; put it in quotes")
    if not custom_id:
        return LineFault(LineCode.CUSTOM_ID_EMPTY, "custom_id is empty; give every line one of its own")
    if _has_lone_surrogate(custom_id):
        return LineFault(
            LineCode.CUSTOM_ID_LONE_SURROGATE,
            "custom_id holds half of a surrogate pair, which UTF-8 cannot hold; write the whole character",
        )
    return None


def _find_route_fault(value: dict[str, object]) -> tuple[LineCode, str] | None:
    method, url = value.get("method"), value.get("url")
    if method != "POST":
        return LineCode.METHOD_NOT_POST, f'method is {shown(method)}; it must be "POST"'
    if not isinstance(url, str) or url not in ROUTES:
        return LineCode.URL_UNKNOWN, f"url is {shown(url)}; it must be one of {', '.join(sorted(ROUTES))}"
    return None


def _find_body_fault(body: object) -> tuple[LineCode, str] | None:
    if body is None:
        return LineCode.BODY_MISSING, "body is missing; it must be the JSON object to post"
    if not isinstance(body, dict):
        return LineCode.BODY_NOT_AN_OBJECT, f"body is {shown(body)}; it must be a JSON object"
    stream = body.get("stream")
    if stream is not None and stream is not False:
        return (
            LineCode.STREAM_NOT_ALLOWED,
            "body.stream must be false or left out: an answer is recorded whole",
        )
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        return LineCode.MODEL_NOT_A_STRING, f"body.model is {shown(model)}; it must be a string or left out"
    if model and _has_lone_surrogate(model):
        return (
            LineCode.MODEL_LONE_SURROGATE,
            "body.model holds half of a surrogate pair; write a model's name",
        )
    return None


def _head(value: dict[str, object], text: str) -> Head:
    """The request of a line without fault. `value` is what `text` holds."""
    body = cast("dict[str, str | None]", value["body"])
    return Head(
        str(value["custom_id"]), str(value["url"]), body.get("model"), raw_members(text)["body"].encode()
    )


def _nesting(content: bytes) -> int:
    """Levels of brackets outside strings."""
    level = deepest = 0
    for bracket in _STRING.sub(b"", content):
        if bracket in b"[{":
            level += 1
            deepest = max(deepest, level)
        elif bracket in b"]}":
            level -= 1
    return deepest


def _has_lone_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)

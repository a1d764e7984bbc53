"""What an error answer says of itself, whatever its shape."""

from typing import Final

import msgspec

TEXT_BYTES_MAX: Final = 2048
"""A server's own words are kept up to this size, as message and as body (docs/architecture.md, Results)."""
_PLACES_MAX: Final = 10


class Complaint(msgspec.Struct, frozen=True, gc=False):
    """The typed fields of an error answer. An empty field was not given, or was not text."""

    message: str = ""
    """The server's words, at most 2 KB of UTF-8."""
    type: str = ""
    param: str = ""
    code: str = ""
    structured: bool = False
    """Whether it is a JSON object that holds an error, and so more than a proxy's page."""
    located: bool = False
    """Whether it lists places in the request that are wrong (FastAPI's `detail`)."""


def read_complaint(body: bytes) -> Complaint:
    """Read the body of an error answer. Never raises.

    Known are vLLM's nested shape, the flat one (vLLM before 0.10, and SGLang), a bare string (vLLM's 401),
    and FastAPI's `detail`; anything else is its own message.
    """
    try:
        return _complaint_of(_ENVELOPE.decode(body)) or _plain(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _plain(body)


def clip(text: str) -> str:
    """Cut a text to at most 2 KB of UTF-8, at a character's boundary; lone surrogates become `?`."""
    return text.encode("utf-8", "replace")[:TEXT_BYTES_MAX].decode("utf-8", "ignore")


class _Envelope(msgspec.Struct, gc=False):
    """All shapes at once: nested in `error`, flat beside `"object": "error"`, or in `detail`."""

    error: object = None
    detail: object = None
    kind: object = msgspec.field(name="object", default=None)
    message: object = None
    type: object = None
    param: object = None
    code: object = None


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


def _complaint_of(envelope: _Envelope) -> Complaint | None:
    match envelope:
        case _Envelope(error=dict() as error):
            return _from_fields(error)
        case _Envelope(error=str() as message) | _Envelope(detail=str() as message):
            return Complaint(clip(message), structured=True)
        case _Envelope(kind="error"):
            return _from_fields(msgspec.structs.asdict(envelope))
        case _Envelope(detail=[{"loc": _, "msg": _}, *_] as places):
            listed = "; ".join(_place(place) for place in places[:_PLACES_MAX])
            return Complaint(clip(listed), structured=True, located=True)
        case _:
            return None


def _from_fields(fields: dict[str, object]) -> Complaint:
    return Complaint(
        message=clip(_text(fields.get("message"))),
        type=_text(fields.get("type")),
        param=_text(fields.get("param")),
        code=_text(fields.get("code")),
        structured=True,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _place(place: object) -> str:
    match place:
        case {"loc": [*path], "msg": message}:
            return f"{'.'.join(map(str, path))}: {message}"
        case _:
            return str(place)


def _plain(body: bytes) -> Complaint:
    return Complaint(clip(body.decode("utf-8", "replace").strip()))

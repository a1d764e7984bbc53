"""Answers that say no, as servers and the proxies before them are known to give them: ready-made faults."""

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

from dispatcher.testing import refusals
from dispatcher.testing.faults import Ending, Respond
from dispatcher.testing.refusals import ErrorShape, RefusalError

_TEXT, _HTML = "text/plain; charset=utf-8", "text/html"


def _refused(refusal: RefusalError, **headers: str) -> Respond:
    return Respond(refusal.status, refusal.body.decode(), headers=headers)


def context_length(shape: ErrorShape = ErrorShape.NESTED) -> Respond:
    """400: the prompt is too long, in the error shape of newer or older versions."""
    return _refused(refusals.context_length(1025, 1024, shape))


def queue_full(status: int = 503, retry_after_s: int | None = 1) -> Respond:
    """503: the server's own queue is full (`--max-num-queued-reqs`). Other servers say 429.

    The words are those of vLLM's QueueOverflowError (its exceptions.py).
    """
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    message = (
        "The engine is currently busy and cannot accept new requests. "
        "Please try again later or on a different instance."
    )
    refusal = refusals.refusal(message, status=status, kind=HTTPStatus(status).phrase)
    return _refused(refusal, **headers)


ENGINE_CORE_500 = _refused(
    refusals.refusal(
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        status=500,
        kind="InternalServerError",
    )
)
EMPTY_500 = Respond(500, "", content_type=_TEXT)
TEXT_500 = Respond(500, "Internal Server Error", content_type=_TEXT)
NAN_500 = _refused(
    refusals.refusal(
        "Out of range float values are not JSON compliant", status=500, kind="InternalServerError"
    )
)
MESH_503 = Respond(
    503, "upstream connect error or disconnect/reset before headers. reset reason: connection failure", _TEXT
)
UNAUTHORIZED_401 = _refused(refusals.unauthorized())
NOT_IMPLEMENTED_501 = _refused(
    refusals.refusal("This model does not support it", status=501, kind="NotImplementedError")
)
TOO_LARGE_413 = Respond(
    413, "<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n</html>\r\n", _HTML
)
GATEWAY_504 = Respond(504, "<html>\r\n<head><title>504 Gateway Time-out</title></head>\r\n</html>\r\n", _HTML)

PRESETS: Mapping[str, Respond] = MappingProxyType(
    {
        "engine_core_500": ENGINE_CORE_500,
        "empty_500": EMPTY_500,
        "text_500": TEXT_500,
        "nan_500": NAN_500,
        "mesh_503": MESH_503,
        "queue_full_503": queue_full(503),
        "queue_full_429": queue_full(429),
        "unauthorized_401": UNAUTHORIZED_401,
        "not_implemented_501": NOT_IMPLEMENTED_501,
        "too_large_413": TOO_LARGE_413,
        "gateway_504": GATEWAY_504,
        "context_length_400": context_length(),
        "context_length_flat_400": context_length(ErrorShape.FLAT),
    }
)
"""By the names that `POST /fake/faults` takes."""

DEATHS: Mapping[Ending, Respond] = MappingProxyType(
    {Ending.ENGINE_CORE: ENGINE_CORE_500, Ending.EMPTY: EMPTY_500, Ending.TEXT: TEXT_500}
)
"""What the requests in flight are answered when their engine dies; the other endings are no answers."""

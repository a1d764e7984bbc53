"""What an answer that is no success means, by its status and what it says of itself."""

from typing import Final, NamedTuple

from dispatcher.model import Answer, ErrorCode, Verdict
from dispatcher.vllm import texts
from dispatcher.vllm.complaints import Complaint


class Ruling(NamedTuple):
    """A judgement's deciding part. `hard`: this alone proves that the server cannot serve."""

    verdict: Verdict
    code: ErrorCode
    hard: bool = False


CREDENTIALS_REFUSED: Final = Ruling(Verdict.MISMATCH, ErrorCode.SERVER_ERROR)
ENGINE_DEAD: Final = Ruling(Verdict.SERVER_FAULT, ErrorCode.SERVER_ERROR, hard=True)
"""The engine died with this request in it."""


def rule(answer: Answer, said: Complaint, *, healthy: bool | None) -> Ruling:
    """Rule on an answer outside 2xx. `healthy`: what `/health` says of the server, None for unknown."""
    match answer.status:
        case 400 | 413 | 422:
            return _rule_bad_request(answer.status, said)
        case 404:
            return _rule_not_found(said)
        case 500:
            return _rule_internal_error(said)
        case 501:
            return _rule_not_implemented(said)
        case 503:
            return _rule_unavailable(answer, said, healthy=healthy)
        case status:
            return _BY_STATUS.get(status) or _rule_unknown(status)


_GONE: Final = Ruling(Verdict.SERVER_FAULT, ErrorCode.SERVER_ERROR)
_DEAD: Final = Ruling(Verdict.SERVER_FAULT, ErrorCode.SERVER_ERROR, hard=True)
_OVERLOADED: Final = Ruling(Verdict.OVERLOAD, ErrorCode.SERVER_ERROR)
_IMPATIENT: Final = Ruling(Verdict.DOUBTFUL, ErrorCode.TIMEOUT)
"""A gateway lost patience. Whether the server is gone or the row is long cannot be seen from here: resent
free of charge, one long row would take one healthy server after the other out of the pool."""

_BY_STATUS: Final = {
    401: CREDENTIALS_REFUSED,
    403: CREDENTIALS_REFUSED,
    408: _IMPATIENT,
    429: _OVERLOADED,
    502: _GONE,
    504: _IMPATIENT,
}


def _rule_bad_request(status: int, said: Complaint) -> Ruling:
    """Rule on 400, 413 and 422: convict the request only on what names it.

    vLLM turns every ValueError, TypeError and OverflowError into a 400. What names the request is a `param`,
    FastAPI's list of places, OpenAI's own type, and the status 413, whoever sends it: the size is the
    request's. Not so `UnprocessableEntityError`: there vLLM could not fetch a URL that the request gives
    (multimodal/media/connector.py), which may be due to this one server's network.
    """
    if said.message.startswith(texts.ENGINE_DEAD):
        return ENGINE_DEAD
    if _is_context_length(said) or any(text in said.message for text in texts.CONTEXT_LENGTH):
        return Ruling(Verdict.REQUEST_FAULT, ErrorCode.CONTEXT_LENGTH)
    named = status == 413 or said.param or said.located or said.type == "invalid_request_error"  # noqa: PLR2004 - Content Too Large
    if named and said.type != "UnprocessableEntityError":
        return Ruling(Verdict.REQUEST_FAULT, ErrorCode.INVALID_REQUEST)
    return Ruling(Verdict.DOUBTFUL, ErrorCode.INVALID_REQUEST)


def _is_context_length(said: Complaint) -> bool:
    """Tell by typed fields: vLLM's param, OpenAI's code, llama.cpp's type (its pull request 15780).

    vLLM names `input_text` where the text has more characters than the context can have tokens of any length.
    """
    return (
        said.param in ("input_tokens", "input_text")
        or said.code == "context_length_exceeded"
        or said.type == "exceed_context_size_error"
    )


def _rule_not_found(said: Complaint) -> Ruling:
    """Rule on 404: an unknown model takes the server out of rotation, all else is doubtful.

    A missing route (`{"detail": "Not Found"}`, or a proxy's page) is no mismatch: the server goes on to
    answer its other routes, and every such row would take it out of rotation. Nor is it the request's fault,
    since another server of the fleet, or this one behind a corrected prefix, may have the route. So it is
    charged, and ends after `max_attempts` where no server has it.
    """
    if said.code == "model_not_found" or (said.type == "NotFoundError" and said.param in ("model", "")):
        return Ruling(Verdict.MISMATCH, ErrorCode.MODEL_NOT_FOUND)
    if said.param:
        return Ruling(Verdict.REQUEST_FAULT, ErrorCode.INVALID_REQUEST)
    return Ruling(Verdict.DOUBTFUL, ErrorCode.INVALID_REQUEST)


def _rule_internal_error(said: Complaint) -> Ruling:
    """Rule on 500: the engine's death is told by its text, llama.cpp's full context by its type.

    Any other is no proof against the server: NaN logprobs give one for the same request on every server.
    """
    if said.message.startswith(texts.ENGINE_DEAD):
        return ENGINE_DEAD
    if _is_context_length(said):
        return Ruling(Verdict.REQUEST_FAULT, ErrorCode.CONTEXT_LENGTH)
    return Ruling(Verdict.DOUBTFUL, ErrorCode.SERVER_ERROR)


def _rule_not_implemented(said: Complaint) -> Ruling:
    """Rule on 501: vLLM's own type means "The model does not support Embeddings API" and the like.

    Every server of that model would say the same. From anyone else a 501 is unknown.
    """
    if said.type == "NotImplementedError":
        return Ruling(Verdict.REQUEST_FAULT, ErrorCode.INVALID_REQUEST)
    return Ruling(Verdict.DOUBTFUL, ErrorCode.INVALID_REQUEST)


def _rule_unavailable(answer: Answer, said: Complaint, *, healthy: bool | None) -> Ruling:
    """Rule on 503, too busy or gone? In order: `/health`'s no, Retry-After, a mesh's words, vLLM's JSON.

    A busy vLLM sends a JSON error (QueueOverflowError, MaxQueuedTokensError, RetryableRequestError in its
    exceptions.py), a loading llama.cpp the type `unavailable_error`. A 503 that says nothing, from a server
    of unknown health, counts as gone: probes readmit a healthy server within seconds, while nothing would
    ever correct the belief that a dead one is merely busy.
    """
    if healthy is False:
        return _DEAD
    if answer.retry_after_s is not None or texts.MESH_OVERFLOW in said.message:
        return _OVERLOADED
    if _is_page(answer) or any(text in said.message for text in texts.MESH_FAILURE):
        return _GONE
    busy = healthy or (said.structured and said.type != "unavailable_error")
    return _OVERLOADED if busy else _GONE


def _is_page(answer: Answer) -> bool:
    return answer.content_type.startswith("text/html") or answer.body.lstrip()[:1] == b"<"


def _rule_unknown(status: int) -> Ruling:
    """Rule on what nothing is known of. A redirect is not followed: what it leads to is another server."""
    match status // 100:
        case 4:
            return Ruling(Verdict.DOUBTFUL, ErrorCode.INVALID_REQUEST)
        case 5:
            return Ruling(Verdict.DOUBTFUL, ErrorCode.SERVER_ERROR)
        case _:
            return Ruling(Verdict.DOUBTFUL, ErrorCode.INVALID_RESPONSE)

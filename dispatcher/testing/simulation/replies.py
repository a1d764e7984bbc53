"""What simulated servers answer: the bytes that a real one would send, made cheaply."""

from typing import Final

from dispatcher.model import Answer
from dispatcher.testing import refusals
from dispatcher.testing.simulation.rows import Row, RowKind

JSON: Final = "application/json"
OTHER_MODEL: Final = "another-model"
_ANSWER: Final = (
    b'{"id":"chatcmpl-%d","object":"chat.completion","created":1750000000,"model":"%b","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"answer %d"},"logprobs":%b,"finish_reason":%b}],'
    b'"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}'
)
_ENGINE_DEAD: Final = refusals.refusal(
    "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    status=500,
    kind="InternalServerError",
)
_FAILED: Final = refusals.refusal("list index out of range", status=500, kind="InternalServerError")
_FULL: Final = refusals.refusal("the queue is full", status=503, kind="QueueOverflowError")


def answered(row: Row, model: str) -> Answer:
    """A complete answer to a row."""
    return _completion(row, model, b'"stop"')


def unfinished(row: Row, model: str) -> Answer:
    """An answer that ends without a reason."""
    return _completion(row, model, b"null")


def garbled(row: Row, model: str) -> Answer:
    """Two hundred, and half an answer with something else behind it."""
    whole = answered(row, model).body
    return Answer(200, whole[: len(whole) // 2] + b"<html>", JSON)


def failed() -> Answer:
    """A plain 500."""
    return Answer(500, _FAILED.body, JSON)


def engine_dead() -> Answer:
    """What vLLM answers when its engine is gone."""
    return Answer(500, _ENGINE_DEAD.body, JSON)


def full(*, unavailable: bool, retry_after_s: float | None) -> Answer:
    """The server's own queue is full: 503, or 429."""
    return Answer(503 if unavailable else 429, _FULL.body, JSON, retry_after_s=retry_after_s)


def unknown_model(model: str) -> Answer:
    """Such a model is not served here."""
    return Answer(404, refusals.unknown_model(model).body, JSON)


def too_long(row: Row, model_len: int) -> Answer:
    """The row does not fit the model's context."""
    refused = refusals.context_length(model_len + row.prompt_tokens, model_len)
    return Answer(400, refused.body, JSON)


def _completion(row: Row, model: str, finish_reason: bytes) -> Answer:
    logprobs = b'{"content":[{"token":"a","logprob":NaN}]}' if row.kind is RowKind.NAN else b"null"
    prompt, output = row.prompt_tokens, row.output_tokens
    body = _ANSWER % (
        row.index,
        model.encode(),
        row.index,
        logprobs,
        finish_reason,
        prompt,
        prompt + output,
        output,
    )
    return Answer(200, body, JSON)

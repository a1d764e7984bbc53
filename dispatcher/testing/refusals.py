"""vLLM's error answers, word for word where they are known (seen on 0.32.0 unless said otherwise)."""

from collections.abc import Sequence
from enum import StrEnum, auto

import msgspec

JSON = "application/json"


class ErrorShape(StrEnum):
    """How the JSON of an error is laid out."""

    NESTED = auto()  # {"error": {...}}: 0.10 and later
    FLAT = auto()  # {"object": "error", ...}: before


class RefusalError(Exception):
    """An answer that says no. Raised while a request is read; the server sends it as it is."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


def refusal(
    message: str,
    *,
    status: int = 400,
    kind: str = "BadRequestError",
    param: str | None = None,
    shape: ErrorShape = ErrorShape.NESTED,
) -> RefusalError:
    """An error in one of vLLM's JSON shapes; `kind` is its `type`."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    flat = {"object": "error", **error}
    return RefusalError(status, msgspec.json.encode({"error": error} if shape is ErrorShape.NESTED else flat))


def out_of_range(message: str, param: str, value: object) -> RefusalError:
    """A parameter has a value that it cannot have."""
    return refusal(f"{message} (parameter={param}, value={value})", param=param)


def invalid(detail: str, place: str) -> RefusalError:
    """The body is not what the route reads; `place` is `body.max_tokens` and the like."""
    return refusal(f"1 validation error:\n  {detail}", kind="Bad Request", param=place)


def malformed_json(detail: str, at: int) -> RefusalError:
    """The body is not JSON, from this character on."""
    return invalid(f"JSON decode error: {detail}", f"body.{at}")


def lone_surrogate() -> RefusalError:
    """The body's text has half of a surrogate pair, which no tokeniser takes."""
    return refusal("TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]")


def unknown_model(model: str, aliases: Sequence[str] = ()) -> RefusalError:
    """No such name is served here. The routes that pool name no aliases and no parameter."""
    message = f"The model `{model}` does not exist."
    if not aliases:
        return refusal(message, status=404, kind="NotFoundError")
    message = f"{message} Valid aliases: {', '.join(aliases)}."
    return refusal(message, status=404, kind="NotFoundError", param="model")


def context_length(
    prompt_tokens: int, max_model_len: int, shape: ErrorShape = ErrorShape.NESTED
) -> RefusalError:
    """The prompt is longer than the model's context."""
    at_least = "at least " if prompt_tokens == max_model_len + 1 else ""
    return refusal(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
        f"{at_least}{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. "
        f"Please reduce the length of the input prompt. (parameter=input_tokens, value={prompt_tokens})",
        param="input_tokens",
        shape=shape,
    )


def answer_too_long(param: str, wanted: int, max_model_len: int) -> RefusalError:
    """More tokens are asked for than the context has, whatever the prompt."""
    return out_of_range(
        f"{param}={wanted} cannot be greater than max_model_len={max_model_len}. "
        "Please request fewer output tokens.",
        param,
        wanted,
    )


def no_prompt() -> RefusalError:
    """A completion of nothing."""
    return refusal(
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", param="prompt"
    )


def no_messages() -> RefusalError:
    """A chat in which nobody has said anything."""
    return refusal("Cannot apply chat template to an empty conversation. Provide at least one message.")


def not_found() -> RefusalError:
    """The route does not exist, or not outside development mode."""
    return RefusalError(404, b'{"detail":"Not Found"}')


def method_not_allowed() -> RefusalError:
    """The route exists for another method."""
    return RefusalError(405, b'{"detail":"Method Not Allowed"}')


def unauthorized() -> RefusalError:
    """The API key is missing or wrong: vLLM's error is a plain string here."""
    return RefusalError(401, b'{"error":"Unauthorized"}')


def repeated_request_id(request_id: str) -> RefusalError:
    """The request's id is that of one still open."""
    return refusal(f"Request id {request_id} already running.")

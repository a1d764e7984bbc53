"""vLLM's error answers, word for word where they are known (seen on 0.32.0 unless said otherwise)."""

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


def malformed_json(detail: str) -> RefusalError:
    """The body is not JSON."""
    return refusal(f"1 validation error:\n  JSON decode error: {detail}", kind="Bad Request")


def lone_surrogate() -> RefusalError:
    """The body's text has half of a surrogate pair, which no tokeniser takes."""
    return refusal("TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]")


def unknown_model(model: str) -> RefusalError:
    """No such name is served here."""
    return refusal(f"The model `{model}` does not exist.", status=404, kind="NotFoundError", param="model")


def context_length(
    prompt_tokens: int, output_tokens: int, max_model_len: int, shape: ErrorShape = ErrorShape.NESTED
) -> RefusalError:
    """The prompt, or the prompt with the tokens asked for, is longer than the model's context."""
    return refusal(
        f"This model's maximum context length is {max_model_len} tokens. However, you requested "
        f"{output_tokens} output tokens and your prompt contains {prompt_tokens} input tokens, for a total "
        f"of {prompt_tokens + output_tokens} tokens. Please reduce the length of the input prompt or the "
        "number of requested output tokens.",
        param="input_tokens",
        shape=shape,
    )


def negative_temperature(temperature: float) -> RefusalError:
    """A sampling parameter is out of its range."""
    return refusal(f"temperature must be non-negative, got {temperature}.", param="temperature")


def not_found() -> RefusalError:
    """The route does not exist, or not outside development mode."""
    return RefusalError(404, b'{"detail":"Not Found"}')


def unauthorized() -> RefusalError:
    """The API key is missing or wrong: vLLM's error is a plain string here."""
    return RefusalError(401, b'{"error":"Unauthorized"}')


def repeated_request_id(request_id: str) -> RefusalError:
    """The request's id is that of one still open."""
    return refusal(f"Request id {request_id} already running.")

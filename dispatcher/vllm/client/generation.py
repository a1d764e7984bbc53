"""What one generated answer holds."""

import math
from dataclasses import dataclass, field
from typing import Final

import msgspec

from dispatcher.errors import DispatcherError, RequestFailedError
from dispatcher.model import NO_TOKENS, ErrorCode, Tokens
from dispatcher.vllm.client.sender import Reply


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token and its natural log-probability; vLLM has -9999 for what a constraint forbids."""

    token: str
    """Its text; of a token that holds a part of a character, what the server makes of that."""
    logprob: float
    top: tuple["TokenLogprob", ...] = ()
    """The likeliest tokens at this position, the likeliest first, as many as `top_logprobs` asked for."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants called."""

    id: str
    name: str
    arguments: str
    """JSON, as the model wrote it: it need not be valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The answer to one conversation, or its error."""

    text: str = ""
    """Empty where the model wrote none: it called a tool, or its reasoning took all tokens."""
    reasoning: str | None = None
    """The model's thinking, where the server keeps it apart (vLLM's `--reasoning-parser`)."""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    """`stop`, `length` or `tool_calls`."""
    tokens: Tokens = NO_TOKENS
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each token of the answer, where `logprobs` asked for them."""
    model: str | None = None
    server: str | None = None
    request_id: str | None = None
    attempts: int = 0
    """Sends that it took."""
    seconds: float = 0.0
    """Duration of the last one."""
    body: bytes | None = field(default=None, repr=False)
    """The server's whole answer, as one line of strict JSON."""
    error: DispatcherError | None = None

    @property
    def ok(self) -> bool:
        """Whether there is an answer."""
        return self.error is None

    @property
    def response(self) -> dict[str, object] | None:
        """The server's whole answer, decoded; None where there is none."""
        return None if self.body is None else msgspec.json.decode(self.body, type=dict[str, object])


def read_generation(reply: Reply) -> Generation:
    """Read a reply of `/v1/chat/completions`. Raises RequestFailedError where it is not of that form."""
    try:
        answer = _ANSWER.decode(reply.body)
    except msgspec.DecodeError as error:
        raise unreadable(reply, f"the answer cannot be read: {error}") from error
    choice, *more = answer.choices
    if more:
        raise unreadable(reply, f"{len(answer.choices)} choices came back for one request")
    message = choice.message
    return Generation(
        text=message.content or "",
        reasoning=message.reasoning or message.reasoning_content,
        tool_calls=tuple(_tool_call(each) for each in message.tool_calls or ()),
        finish_reason=choice.finish_reason,
        tokens=reply.tokens,
        logprobs=_logprobs(choice.logprobs),
        model=answer.model,
        server=reply.server.id,
        request_id=reply.request_id,
        attempts=reply.attempts,
        seconds=reply.seconds,
        body=reply.body,
    )


def failed(error: DispatcherError) -> Generation:
    """What stands in an answer's place."""
    if not isinstance(error, RequestFailedError):
        return Generation(error=error)
    return Generation(server=error.server, request_id=error.request_id, attempts=error.attempts, error=error)


def fields_of(error: DispatcherError) -> dict[str, object]:
    """What a log may say of it: not the server's words, which can repeat the prompt."""
    if not isinstance(error, RequestFailedError):
        return {"kind": type(error).__name__}
    return {
        "code": str(error.code),
        "status": error.status,
        "server": error.server,
        "request_id": error.request_id,
        "attempts": error.attempts,
    }


def unreadable(reply: Reply, message: str) -> RequestFailedError:
    """The error for an answer that is complete, and not of its route's form."""
    return RequestFailedError(
        message,
        ErrorCode.INVALID_RESPONSE,
        request_id=reply.request_id,
        server=reply.server.id,
        attempts=reply.attempts,
    )


class _Function(msgspec.Struct):
    name: str = ""
    arguments: str = ""


class _ToolCall(msgspec.Struct):
    function: _Function
    id: str = ""


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The name until vLLM 0.16 or so, and other servers' still."""
    tool_calls: list[_ToolCall] | None = None


class _Token(msgspec.Struct):
    token: str
    logprob: float | None = None


class _Position(_Token, kw_only=True):
    top_logprobs: list[_Token] = []


class _Logprobs(msgspec.Struct):
    content: list[_Position] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    model: str | None = None


_ANSWER: Final = msgspec.json.Decoder(_Answer)


def _tool_call(call: _ToolCall) -> ToolCall:
    return ToolCall(call.id, call.function.name, call.function.arguments)


def _logprobs(logprobs: _Logprobs | None) -> tuple[TokenLogprob, ...] | None:
    if logprobs is None or logprobs.content is None:
        return None
    return tuple(_token(each, tuple(map(_token, each.top_logprobs))) for each in logprobs.content)


def _token(token: _Token, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    # A NaN of the server's has become null on its way here: strict JSON has none.
    return TokenLogprob(token.token, math.nan if token.logprob is None else token.logprob, top)

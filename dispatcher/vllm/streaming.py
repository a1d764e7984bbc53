"""Answers that are passed on while they are written: bytes in, the same bytes out."""

from collections import deque
from typing import Final, Protocol

import aiohttp
import msgspec
from aiohttp import hdrs

from dispatcher.model import NO_TOKENS, Tokens
from dispatcher.vllm.answers import read_usage

EVENT_STREAM: Final = "text/event-stream"
TAIL_BYTES: Final = 32 * 1024
"""A response's last event holds its whole text; a chat's is some hundred bytes long."""
_DATA: Final = b"data:"


class Tail:
    """The last bytes of a stream, which say how many tokens it was: where the client has asked for that.

    A chat's or a completion's last event but `[DONE]` has them as `usage`, with its `include_usage` (vLLM,
    entrypoints/openai/chat_completion/serving.py); that of a response always, in its `response`.
    """

    __slots__ = ("_bytes", "_chunks")

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._bytes = 0

    def add(self, chunk: bytes) -> None:
        """The next bytes."""
        self._chunks.append(chunk)
        self._bytes += len(chunk)
        while self._bytes - len(self._chunks[0]) >= TAIL_BYTES:
            self._bytes -= len(self._chunks.popleft())

    def tokens(self) -> Tokens:
        """What the stream's end counts; none where it does not tell, or its last event is too long."""
        for line in reversed(b"".join(self._chunks).split(b"\n")):
            if line.startswith(_DATA) and b'"usage"' in line:
                tokens = _tokens_of(line.removeprefix(_DATA))
                if tokens != NO_TOKENS:
                    return tokens
        return NO_TOKENS


class Sink(Protocol):
    """Who takes a stream of events."""

    async def begin(self, status: int, content_type: str, request_id: str) -> None:
        """The head of an answer that is a stream. What raises here, or in `write`, ends the attempt."""

    async def write(self, chunk: bytes) -> None:
        """The stream's next bytes. Returns when more may come."""


def is_stream(response: aiohttp.ClientResponse) -> bool:
    """Whether an answer is a stream of events; errors are whole answers, whatever was asked for."""
    good = response.status // 100 == 2  # noqa: PLR2004  # 2xx
    return good and response.headers.get(hdrs.CONTENT_TYPE, "").startswith(EVENT_STREAM)


async def flow(response: aiohttp.ClientResponse, sink: Sink, request_id: str) -> None:
    """Hand a stream on, chunk by chunk as it comes. Raises what the connection, or the sink, raises."""
    await sink.begin(response.status, response.headers[hdrs.CONTENT_TYPE], request_id)
    while chunk := await response.content.readany():
        await sink.write(chunk)


class _Counted(msgspec.Struct, gc=False):
    usage: msgspec.Raw = msgspec.Raw(b"null")


class _Event(_Counted, gc=False):
    response: _Counted | None = None


_EVENT: Final = msgspec.json.Decoder(_Event)


def _tokens_of(event: bytes) -> Tokens:
    try:
        decoded = _EVENT.decode(event)
    except msgspec.DecodeError:  # cut off, or none of a model's
        return NO_TOKENS
    return read_usage(decoded.usage if decoded.response is None else decoded.response.usage)

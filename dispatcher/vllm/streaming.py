"""Answers that are passed on while they are written: bytes in, the same bytes out."""

from typing import Final, Protocol

import aiohttp
from aiohttp import hdrs

EVENT_STREAM: Final = "text/event-stream"


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

"""An answer that is written as its bytes come: whole, or broken off so that it does not look whole."""

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from dispatcher.api.errors import log_failure
from dispatcher.errors import DispatcherError

PIECE_BYTES, PIECE_S = 1 << 20, 60.0
"""How long a reader may take for a piece: memory is held for whoever reads no more."""


async def send(request: web.Request, response: web.StreamResponse, chunks: AsyncIterator[bytes]) -> None:
    """Write the bytes of an answer that is prepared. Its head has gone out: a failure ends the connection."""
    try:
        await _write(response, chunks)
    except (TimeoutError, ConnectionError):  # who asked reads no more, or has left
        _break_off(request)
    except DispatcherError as error:
        log_failure(request, error)
        _break_off(request)


async def _write(response: web.StreamResponse, chunks: AsyncIterator[bytes]) -> None:
    async for chunk in chunks:
        for start in range(0, len(chunk), PIECE_BYTES):
            async with asyncio.timeout(PIECE_S):
                await response.write(chunk[start : start + PIECE_BYTES])
    await response.write_eof()


def _break_off(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()

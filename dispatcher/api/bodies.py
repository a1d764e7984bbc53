"""Request bodies: bounded in bytes and in time, and read into records."""

import asyncio
from typing import TypeVar

import msgspec
from aiohttp import web

from dispatcher.api.access import is_live
from dispatcher.api.errors import ApiError, Handler

READ_S = 60.0
"""How long a body may take to come, whatever its size: 64 MiB at 1 MB/s."""
RECORD_BYTES_MAX = 64 * 1024
"""What a body that is no payload for a server may have."""
UPLOADS = "/v1/files"
"""Streamed to storage by its own route, under bounds of its own."""

Record = TypeVar("Record")


@web.middleware
async def bound_body(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Have the whole body before a route is called; who sends it slowly is not waited for.

    Raises ApiError (400, 408), HTTPRequestEntityTooLarge (413). Routes read it again from memory.
    """
    if request.body_exists and request.path != UPLOADS:
        if not is_live(request.method, request.path):  # nor may who shows no valid token fill the memory
            request = request.clone(client_max_size=RECORD_BYTES_MAX)
        if request.content.is_eof():  # most come with their heads, and need no timer
            await request.read()
        else:
            await _read_in_time(request)
    return await handler(request)


async def _read_in_time(request: web.Request) -> None:
    try:
        async with asyncio.timeout(READ_S):
            await request.read()
    except TimeoutError:
        headers = {"Connection": "close"}
        message = f"the body did not come within {READ_S:g} s"
        raise ApiError(408, message, code="request_timeout", headers=headers) from None
    except (web.RequestPayloadError, ConnectionError) as error:  # not what its encoding says, or cut short
        headers = {"Connection": "close"}
        raise ApiError(400, "the body cannot be read", code="invalid_body", headers=headers) from error


async def read_record(request: web.Request, kind: type[Record]) -> Record:
    """A small JSON body as a record. Raises ApiError (400) where it cannot be read."""
    body = await request.read()
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error) if isinstance(error, msgspec.ValidationError) else "it is not JSON"
        raise ApiError(400, f"the body cannot be used: {reason}", code="invalid_body") from error

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from dispatcher.model import ServerId, ServerSpec


class Wire:
    """Raw TCP servers on free ports of loopback, and the little HTTP that their scripts need."""

    def __init__(self, stack):
        self._stack = stack

    async def serve(self, handler, **options):
        """Start a server that lives as long as the test; each connection is given to the handler."""
        return await self._stack.enter_async_context(_serving(handler, **options))

    @staticmethod
    def spec(url, **fields):
        return ServerSpec(ServerId(url), url, **fields)

    @staticmethod
    async def read_request(reader):
        """The head and the body of one request; (b"", b"") where the client has closed."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b"", b""
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return head, await reader.readexactly(length)

    @staticmethod
    def response(body=b"{}", status=b"200 OK", headers=b"Content-Type: application/json\r\n", length=None):
        announced = len(body) if length is None else length
        return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, announced, body)


@asynccontextmanager
async def _serving(handler, **options):
    connections = set()

    async def connected(reader, writer):
        task = asyncio.current_task()
        connections.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await handler(reader, writer)
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, **options)
    try:
        yield Wire.spec(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


@pytest.fixture
async def wire():
    async with AsyncExitStack() as stack:
        yield Wire(stack)

"""The fake's sockets: a listener that closes and opens again on one port, connections that break."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from typing import NoReturn

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage

from dispatcher.testing.settings import FakeServerSettings

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
_BACKLOG = 2048
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: close() sends RST


class Listener:
    """A listening socket that comes and goes, always on one port.

    A second socket stays bound to the port without listening: while the listener is closed, connections are
    refused, and no other process is given the port. `asyncio.Server` does not serve here: it never closes a
    connection that it accepts in the moment it is closed (`Server._attach` asserts; seen up to Python 3.13).
    """

    def __init__(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> None:
        self._factory = factory
        self._host = host
        self._guard = _bound(host, port)
        self._socket: socket.socket | None = None
        self._arriving: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port, chosen by the system where 0 was asked for."""
        return int(self._guard.getsockname()[1])

    @property
    def listening(self) -> bool:
        """Whether connections are accepted."""
        return self._socket is not None

    def open(self) -> None:
        """Listen; nothing happens where it listens already. To be called in a running loop."""
        if self._socket is None:
            self._socket = _bound(self._host, self.port)
            self._socket.settimeout(0)
            self._socket.listen(_BACKLOG)
            asyncio.get_running_loop().add_reader(self._socket, self._accept, self._socket)

    def close(self) -> None:
        """Stop listening. Accepted connections stay as they are."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    async def release(self) -> None:
        """Stop listening and give the port back."""
        self.close()
        self._guard.close()
        if self._arriving:
            await asyncio.wait(self._arriving)

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):  # nobody waits any more, the peer is gone, or descriptors are short
            for _ in range(_BACKLOG):
                task = asyncio.create_task(self._greet(listening, listening.accept()[0]), name="accept")
                self._arriving.add(task)
                task.add_done_callback(self._arriving.discard)

    async def _greet(self, listening: socket.socket, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(self._factory, accepted)
        if listening is not self._socket:  # closed meanwhile
            transport.abort()


class Connections(web.Server):
    """The server's connections, and which of them have carried a request before."""

    def __init__(self, handler: Handler, settings: FakeServerSettings) -> None:
        super().__init__(
            handler,
            request_factory=partial(_request, settings.body_bytes_max),
            handler_cancellation=True,
            keepalive_timeout=settings.keepalive_s,
            access_log=None,
        )
        self._used: set[web.RequestHandler] = set()

    def note_use(self, request: web.BaseRequest) -> bool:
        """Whether the request's connection has carried one before; from now on it has."""
        reused = request.protocol in self._used
        self._used.add(request.protocol)
        return reused

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Forget a connection (called by aiohttp)."""
        self._used.discard(handler)
        super().connection_lost(handler, exc)

    def close_all(self, but: Collection[web.RequestHandler] = ()) -> None:
        """Close every connection except these. What was written is sent first."""
        for connection in self.connections:
            if connection not in but:
                connection.force_close()


async def reset(request: web.BaseRequest) -> NoReturn:
    """Break the request's connection with a TCP reset. Ends in the handler's cancellation."""
    transport = request.transport
    if transport is not None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()
    await gone()


async def drop(request: web.BaseRequest) -> NoReturn:
    """Close the request's connection in good order. Ends in the handler's cancellation."""
    if request.transport is not None:
        request.transport.close()
    await gone()


async def send_half(request: web.BaseRequest, body: bytes, content_type: str) -> NoReturn:
    """Announce the whole body, send half of it and close. Ends in the handler's cancellation."""
    response = web.StreamResponse(headers={"Content-Type": content_type, "Content-Length": str(len(body))})
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    await drop(request)


async def gone() -> NoReturn:
    """Wait for the connection's end, which cancels the handler (`handler_cancellation`)."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody answers for a connection that is gone")


def _request(
    body_bytes_max: int,
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=body_bytes_max)


def _bound(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound

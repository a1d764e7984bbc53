"""One live request with its client: where the answer goes, if it is a stream."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

from aiohttp import web

from dispatcher.model import Request
from dispatcher.vllm.streaming import Tail

UNREAD_S_MAX = 60.0
"""How long a client may read nothing of what waits for it: a stream holds a server's permit meanwhile, and a
whole answer memory."""
BUFFERED_BYTES_MAX = 2**16
"""Answers up to this size are sent without waiting for the client, whether it reads or not."""


class ClientLeftError(Exception):
    """The client has closed its connection: there is nobody to answer."""


class Exchange:
    """A live request, and the sink of its answer. Made, and used, inside the task that handles it."""

    __slots__ = (
        "_request",
        "_unread",
        "_writing_since",
        "asked",
        "progressed",
        "request_id",
        "response",
        "tail",
        "task",
    )

    def __init__(self, request: web.Request, asked: Request, request_id: str) -> None:
        task = asyncio.current_task()
        assert task is not None, "aiohttp handles requests in tasks"
        self.task: asyncio.Task[Any] = task
        self.asked = asked
        self.request_id = request_id
        self.response: web.StreamResponse | None = None
        """What is being sent, once its head has gone out: from then on nothing can be sent again."""
        self.progressed: Callable[[], None] = _ignore
        """Told of every chunk that comes."""
        self.tail = Tail()
        self._request = request
        self._writing_since: float | None = None
        self._unread: float = math.inf
        """Bytes that waited for the client at the last look."""

    def client_left(self) -> bool:
        """Whether the client has closed its connection, or reads no more."""
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return True
        since, now = self._writing_since, asyncio.get_running_loop().time()
        if since is None:
            return False
        unread = transport.get_write_buffer_size()
        if unread < self._unread:
            self._unread, self._writing_since = unread, now
            return False
        return now - since > UNREAD_S_MAX

    def leave(self) -> None:
        """Give up a client that has left. What waits for it is dropped, or it would wait for ever."""
        if self._request.transport is not None:
            self._request.transport.abort()
        self.task.cancel()

    async def deliver(self, response: web.Response) -> web.Response:
        """Send a whole answer; a small one is left to aiohttp. Raises ClientLeftError."""
        assert isinstance(response.body, bytes), "servers' answers are"
        if len(response.body) > BUFFERED_BYTES_MAX:
            self.response = response
            self._begin_writing()
            try:
                await response.prepare(self._request)
                await response.write_eof()
            except ConnectionError as error:
                raise ClientLeftError from error
            self._writing_since = None
        return response

    async def begin(self, status: int, content_type: str, request_id: str) -> None:
        """Send the head. Raises ClientLeftError."""
        headers = {"Content-Type": content_type, "X-Request-Id": request_id}
        self.response = web.StreamResponse(status=status, headers=headers)
        try:
            await self.response.prepare(self._request)
        except ConnectionError as error:
            raise ClientLeftError from error

    async def write(self, chunk: bytes) -> None:
        """Send a chunk; returns when the client has room for more. Raises ClientLeftError."""
        assert self.response is not None, "the head goes first"
        self.progressed()
        self.tail.add(chunk)
        self._begin_writing()
        try:
            await self.response.write(chunk)
        except ConnectionError as error:
            raise ClientLeftError from error
        self._writing_since = None

    def _begin_writing(self) -> None:
        self._writing_since, self._unread = asyncio.get_running_loop().time(), math.inf

    def end(self, *, whole: bool) -> web.StreamResponse:
        """What the handler returns. A stream that broke off must not look as if it had come to its end."""
        assert self.response is not None, "its head has gone out"
        if not whole and self._request.transport is not None:
            self._request.transport.close()
        return self.response


def _ignore() -> None:
    """Nothing has been sent yet."""

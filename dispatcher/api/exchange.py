"""One live request with its client: where the answer goes, if it is a stream."""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from dispatcher.model import Request

UNREAD_S_MAX = 60.0
"""How long a client may read nothing of a stream that is full: it holds a server's permit meanwhile."""


class ClientLeftError(Exception):
    """The client has closed its connection: there is nobody to answer."""


class Exchange:
    """A live request, and the sink of its answer. Made, and used, inside the task that handles it."""

    __slots__ = ("_request", "_writing_since", "asked", "progressed", "request_id", "response", "task")

    def __init__(self, request: web.Request, asked: Request, request_id: str) -> None:
        task = asyncio.current_task()
        assert task is not None, "aiohttp handles requests in tasks"
        self.task: asyncio.Task[Any] = task
        self.asked = asked
        self.request_id = request_id
        self.response: web.StreamResponse | None = None
        """The stream, once its head has gone out: from then on nothing can be sent again."""
        self.progressed: Callable[[], None] = _ignore
        """Told of every chunk that comes."""
        self._request = request
        self._writing_since: float | None = None

    def client_left(self) -> bool:
        """Whether the client has closed its connection, or reads no more."""
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return True
        since = self._writing_since
        return since is not None and asyncio.get_running_loop().time() - since > UNREAD_S_MAX

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
        self._writing_since = asyncio.get_running_loop().time()
        try:
            await self.response.write(chunk)
        except ConnectionError as error:
            raise ClientLeftError from error
        self._writing_since = None

    def end(self, *, whole: bool) -> web.StreamResponse:
        """What the handler returns. A stream that broke off must not look as if it had come to its end."""
        assert self.response is not None, "a stream was begun"
        if not whole and self._request.transport is not None:
            self._request.transport.close()
        return self.response


def _ignore() -> None:
    """Nothing has been sent yet."""

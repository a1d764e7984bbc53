"""The data plane: one send over HTTP, on kept-alive connections, without any retry."""

import asyncio
import io
import socket
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import aiohttp
from aiohttp import hdrs
from multidict import CIMultiDict, istr
from yarl import URL

from dispatcher.model import Answer, Break, BreakKind, Ending, Request, ServerId, ServerSpec
from dispatcher.telemetry.absences import Absences
from dispatcher.vllm.breaks import break_of
from dispatcher.vllm.headers import retry_after_s, server_headers
from dispatcher.vllm.streaming import EVENT_STREAM, Sink, flow, is_stream

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

KEEP_ALIVE_S: Final = 4.0
"""Idle connections are closed a little before vLLM does, after 5 s (its `--uvicorn-timeout-keep-alive`)."""

ANSWER_BYTES_MAX: Final = 256 * 2**20
OPEN_BYTES_MAX: Final = 512 * 2**20
"""Bytes of all answers that are being read. Past this the machine lacks memory for so many at a time: the
attempt is broken off as a local fault, which is charged to nobody and lowers how many are open."""

_BYTES_IN_ONE_WRITE: Final = 2**20
"""aiohttp warns of `bytes` bodies above 1 MiB and wants a file there (its `payload.TOO_LARGE_BYTES_BODY`)."""
_X_REQUEST_ID: Final = istr("X-Request-Id")
_TCP_KEEPALIVE_S: Final = 30
_TARGETS_MAX: Final = 4096


class AiohttpTransport:
    """`ports.Transport` on one aiohttp session. An async context manager; use it inside one event loop.

    The environment's proxies, netrc and cookies are ignored, redirects are not followed, certificates are
    verified against the system's store, and nothing is retried: aiohttp itself sends again only idempotent
    methods (`IDEMPOTENT_METHODS` in its `client.py`), and every send here is a POST.

    `connect_timeout_s` covers name lookup, connecting and TLS. An answer larger than `answer_bytes_max` is
    not read to its end. What runs out in one of the `absences` is nobody's fault. `trace` gives the headers
    by which a server's own spans belong to the attempt of the running task.
    """

    def __init__(
        self,
        *,
        connect_timeout_s: float = 3.0,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        open_bytes_max: int = OPEN_BYTES_MAX,
        absences: Absences | None = None,
        trace: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self._absences = absences or Absences(time.monotonic)
        self._trace = trace
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_timeout_s)
        self._answer_bytes_max = answer_bytes_max
        self._open_bytes_max = open_bytes_max
        self._open_bytes = 0
        self._targets: dict[ServerId, _Target] = {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=_Connector(
                limit=0,
                keepalive_timeout=KEEP_ALIVE_S,
                socket_factory=_open_socket,
                resolver=aiohttp.ThreadedResolver(),  # the system's, whatever else is installed
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(
        self,
        server: ServerSpec,
        request: Request,
        request_id: str,
        timeout_s: float | None,
        sink: Sink | None = None,
    ) -> Ending:
        """Post the request's body and return how that ended. Raises CancelledError, and what the sink raises.

        `timeout_s` is for the whole attempt; None waits as long as the connection lives. The connection of an
        attempt that did not end with a whole answer is closed on return, which makes vLLM abort the request.
        An answer that is a stream of events goes to the `sink`, where there is one; its body is then empty.
        """
        attempt = _Attempt(time.monotonic())
        _attempt.set(attempt)
        try:
            return await self._post(server, request, request_id, timeout_s, sink)
        except (aiohttp.ClientError, OSError, ValueError, MemoryError) as error:
            age_s = time.monotonic() - attempt.started - self._absences.seconds_since(attempt.started)
            away = self._absences.just_over()
            return break_of(error, reused=not attempt.fresh, age_s=age_s, away=away)
        finally:
            await attempt.hang_up()

    async def _post(
        self,
        server: ServerSpec,
        request: Request,
        request_id: str,
        timeout_s: float | None,
        sink: Sink | None,
    ) -> Ending:
        target = self._target(server)
        body = request.body
        headers = target.headers(request_id)
        if self._trace is not None:
            headers.update(self._trace())
        response = await self._session.post(
            target.url(request.url),
            data=body if len(body) <= _BYTES_IN_ONE_WRITE else io.BytesIO(body),
            headers=headers,
            timeout=self._timeout_of(timeout_s),
            allow_redirects=False,
            server_hostname=server.host_name,
        )
        try:
            if sink is not None and is_stream(response):
                await flow(response, sink, response.headers.get(_X_REQUEST_ID, request_id))
                return Answer(response.status, b"", EVENT_STREAM)
            return await self._answer(response, request_id)
        finally:
            response.close()  # does nothing to a connection that has gone back after a whole answer

    async def _answer(self, response: aiohttp.ClientResponse, request_id: str) -> Ending:
        chunks, size = [], 0
        try:
            while chunk := await response.content.readany():
                chunks.append(chunk)
                size += len(chunk)
                self._open_bytes += len(chunk)
                if too_much := self._too_much(size):
                    return too_much
        finally:
            self._open_bytes -= size
        headers = response.headers
        return Answer(
            response.status,
            chunks[0] if len(chunks) == 1 else b"".join(chunks),
            headers.get(hdrs.CONTENT_TYPE, ""),
            headers.get(_X_REQUEST_ID, request_id),
            retry_after_s(headers.get(hdrs.RETRY_AFTER), headers.get(hdrs.DATE)),
        )

    def _too_much(self, size: int) -> Break | None:
        if size > self._answer_bytes_max:
            return Break(BreakKind.PROTOCOL, f"the answer is larger than {self._answer_bytes_max} bytes")
        if self._open_bytes > self._open_bytes_max:
            return Break(BreakKind.LOCAL, f"the answers being read hold over {self._open_bytes_max} bytes")
        return None

    def _timeout_of(self, timeout_s: float | None) -> aiohttp.ClientTimeout:
        """Make a new one only where the job, and so the timeout, is another than the last send's."""
        if timeout_s != self._timeout.total:
            self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=self._timeout.connect)
        return self._timeout

    def _target(self, server: ServerSpec) -> "_Target":
        target = self._targets.get(server.id)
        if target is None or target.server is not server:
            if len(self._targets) >= _TARGETS_MAX:  # servers come and go; making them anew costs little
                self._targets.clear()
            target = self._targets[server.id] = _Target(server)
        return target


class _Target:
    """What can be prepared once for each server: its headers and its routes' URLs."""

    def __init__(self, server: ServerSpec) -> None:
        self.server = server
        self._headers = CIMultiDict({**server_headers(server), hdrs.CONTENT_TYPE: "application/json"})
        self._urls: dict[str, URL] = {}

    def headers(self, request_id: str) -> CIMultiDict[str]:
        headers = self._headers.copy()
        headers[_X_REQUEST_ID] = request_id
        return headers

    def url(self, route: str) -> URL:
        url = self._urls.get(route)
        if url is None:
            if len(self._urls) >= _TARGETS_MAX:
                self._urls.clear()
            url = self._urls[route] = URL(self.server.base_url + route)
        return url


class _Attempt:
    """What the connector tells about one send.

    It reaches the connector by a context variable, which costs 2 us a request; aiohttp's own TraceConfig
    costs 25, and does not give the connection.
    """

    __slots__ = ("fresh", "started", "transport")

    def __init__(self, started: float) -> None:
        self.started = started
        self.fresh = False
        self.transport: asyncio.Transport | None = None

    async def hang_up(self) -> None:
        """See to it that a connection which is to be closed is closed now.

        aiohttp has begun to close it, but gracefully: unwritten bytes would still be sent, for which a
        hung server can let us wait for ever. And the system's socket is closed only in the loop's next turn,
        so that is waited for. A connection that is not closing has gone back to the pool and is not ours.
        """
        if self.transport is not None and self.transport.is_closing():
            self.transport.abort()
            await asyncio.sleep(0)


_attempt: ContextVar[_Attempt] = ContextVar("attempt")


class _Connector(aiohttp.TCPConnector):
    """Notes which connection an attempt was given."""

    async def connect(
        self,
        req: "ClientRequest",
        traces: "list[Trace]",
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the method overridden has it
    ) -> "Connection":
        connection = await super().connect(req, traces, timeout)
        _attempt.get().transport = connection.transport
        return connection


def _open_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Open a socket, and note that the attempt has a fresh connection.

    A long generation is silent for minutes. TCP keep-alive holds it open in NAT tables and load balancers,
    and finds out about a machine that is gone.
    """
    _attempt.get().fresh = True
    family, kind, protocol, _, _ = address
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _TCP_KEEPALIVE_S)
    return opened

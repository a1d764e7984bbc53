"""Live requests on their way: a permit, a server, the answer to the client. The async shell of `LiveDesk`."""

import asyncio
import itertools
import math
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, assert_never

from aiohttp import web
from multidict import istr

from dispatcher.api.errors import ApiError
from dispatcher.api.exchange import ClientLeftError, Exchange
from dispatcher.api.following import Following
from dispatcher.dispatch.journey import Journey
from dispatcher.dispatch.live import LiveDesk, LiveEnded
from dispatcher.dispatch.prospects import Prospect
from dispatcher.dispatch.turns import LiveAttempt
from dispatcher.model import (
    Answer,
    Break,
    BreakKind,
    Ending,
    Judgement,
    Request,
    ServerId,
    ServerSpec,
    Verdict,
)
from dispatcher.pool.effects import Effect
from dispatcher.pool.server import Server
from dispatcher.ports import Tracer
from dispatcher.vllm.streaming import Sink

WAIT_S_MAX = 30.0
"""How long a live request waits for a permit: half of what usual proxies wait for a first byte."""
RETRY_AFTER_S = 2
"""When a client that was refused may ask again: a server that is out is looked at no sooner."""
WATCH_S = 0.25
"""How often it is seen whether clients are still there."""
OPEN_BYTES_MAX = 2**30
"""Of the bodies of all live requests that are open: a body is kept until its answer, to be sent again."""
NOT_AGAIN = {"X-Should-Retry": "false"}
"""OpenAI's SDKs repeat what ends with a 5xx twice, unless they are told this (their `_base_client.py`)."""
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, TOO_MANY, SERVICE_UNAVAILABLE, BAD_GATEWAY = 401, 403, 404, 429, 503, 502
OURS = (BreakKind.LOCAL, BreakKind.OFFLINE, BreakKind.AWAY)

_REQUEST_ID = re.compile(r"[!-~]{1,256}")
_X_REQUEST_ID = istr("X-Request-Id")


class LiveTransport(Protocol):
    """The data plane: one send, no retry, and a sink for an answer that is a stream."""

    async def send(
        self,
        server: ServerSpec,
        request: Request,
        request_id: str,
        timeout_s: float | None,
        sink: Sink | None = None,
    ) -> Ending:
        """Post the body and return how it ended. Raises CancelledError, and what the sink raises."""


class Relay:
    """Answers live requests from the pool's servers.

    Args:
        desk: Who gets which permit.
        transport: The data plane.
        healthy: What a server's `/health` says now.
        carry_out: What the pool wants done.
        tracer: Who follows attempts, if anybody does.
        log_prompts: Whether the log may hold what servers say.
    """

    def __init__(
        self,
        desk: LiveDesk,
        transport: LiveTransport,
        healthy: Callable[[Server], Awaitable[bool | None]],
        carry_out: Callable[[Sequence[Effect]], None],
        tracer: Tracer | None = None,
        *,
        log_prompts: bool = False,
    ) -> None:
        self._desk = desk
        self._transport = transport
        self._healthy = healthy
        self._carry_out = carry_out
        self._tracer = tracer
        self._log_prompts = log_prompts
        self._open: dict[Exchange, None] = {}
        self._open_bytes = 0
        self._closed = False
        self._stopped = False
        self._idle = asyncio.Event()
        self._request_ids = map(f"{secrets.token_hex(4)}-{{:x}}".format, itertools.count())

    async def answer(self, request: web.Request, asked: Request) -> web.StreamResponse:
        """The answer of whichever server can give one.

        Raises ApiError: 404 for a model nobody has, 429 and 503 where there is no server or no room for it,
        502 where those that tried have failed.
        """
        if self._closed:
            raise _unavailable("the service is stopping")
        if self._open_bytes + len(asked.body) > OPEN_BYTES_MAX:
            raise _busy("the requests that are open are too large to take another")
        exchange = Exchange(request, asked, self._request_id(request))
        self._open[exchange] = None
        self._open_bytes += len(asked.body)
        try:
            with Following(self._tracer, request.headers, exchange, prompts=self._log_prompts) as following:
                return await self._answer(exchange, following)
        except ClientLeftError:
            return exchange.end(whole=False)
        finally:
            del self._open[exchange]
            self._open_bytes -= len(asked.body)
            self._idle.set()

    async def drain(self, timeout_s: float) -> None:
        """Take no more, and wait for what is open."""
        self._closed = True
        try:
            async with asyncio.timeout(timeout_s):
                while self._open and not self._stopped:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return

    def stop(self) -> None:
        """Take no more, and wait for nothing. May be called again."""
        self._closed = self._stopped = True
        self._idle.set()

    async def watch(self) -> None:
        """See, for ever, which clients have left, and which permits came up with time alone."""
        while True:
            await asyncio.sleep(WATCH_S)
            for exchange in list(self._open):
                if exchange.client_left():
                    exchange.leave()
            self._desk.look_everywhere()

    async def _answer(self, exchange: Exchange, following: Following) -> web.StreamResponse:
        journey = Journey()
        while True:
            following.waits()
            attempt = await self._permit(exchange, frozenset(journey.tried))
            attempt.repeated = bool(journey.tried)
            following.sent(attempt)
            ending = await self._send(exchange, attempt)
            ended = await self._ended(exchange, attempt, ending, journey.tried)
            following.ended(ended.judgement)
            if exchange.response is not None:
                return exchange.end(whole=isinstance(ending, Answer))
            journey.ended(attempt.server.spec.id, ended.judgement.verdict, lost=ended.lost)
            if not (ended.again and journey.goes_on()):
                return await exchange.deliver(_response(ending, ended.judgement, journey))

    def _request_id(self, request: web.Request) -> str:
        """The client's own, where it can stand in a header: else it would look like a server's fault."""
        given = request.headers.get(_X_REQUEST_ID)
        return given if given is not None and _REQUEST_ID.fullmatch(given) else next(self._request_ids)

    # Permits

    async def _permit(self, exchange: Exchange, tried: frozenset[ServerId]) -> LiveAttempt:
        model = exchange.asked.model
        elsewhere = bool(tried) and self._desk.has_elsewhere(model, tried)
        avoided = tried if elsewhere else frozenset[ServerId]()
        attempt = self._desk.take(model, avoided)
        if attempt is not None:
            return attempt
        _refuse_hopeless(self._desk.prospect(model), model)
        return await self._wait(model, avoided)

    async def _wait(self, model: str | None, avoided: frozenset[ServerId]) -> LiveAttempt:
        turn = asyncio.Event()
        waiter = self._desk.wait(model, avoided, turn.set)
        if waiter is None:
            raise _busy("too many requests wait for a server")
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                await turn.wait()
        except BaseException as error:
            self._desk.forget(waiter)
            if isinstance(error, TimeoutError):
                raise _busy(f"no server had room within {WAIT_S_MAX:g} s") from None
            raise
        assert waiter.attempt is not None, "its turn comes with a permit"
        return waiter.attempt

    # Sending

    async def _send(self, exchange: Exchange, attempt: LiveAttempt) -> Ending:
        """The permit is held only while the request is at the server."""
        try:
            ending = attempt.given_up or await self._post(exchange, attempt)
        except BaseException:  # its client has left, or we stop
            self._desk.drop(attempt)
            raise
        self._desk.release(attempt)
        return ending

    async def _post(self, exchange: Exchange, attempt: LiveAttempt) -> Ending:
        attempt.close = exchange.task.cancel
        exchange.progressed = lambda: self._desk.progressed(attempt)
        try:
            return await self._transport.send(
                attempt.server.spec,
                exchange.asked,
                exchange.request_id,
                None,
                exchange,
            )
        except asyncio.CancelledError:
            if attempt.given_up is None or exchange.task.uncancel() > 0:
                raise
            return attempt.given_up
        finally:
            attempt.close = None

    async def _ended(
        self, exchange: Exchange, attempt: LiveAttempt, ending: Ending, tried: Sequence[ServerId]
    ) -> LiveEnded:
        healthy = None
        if isinstance(ending, Answer) and ending.status == SERVICE_UNAVAILABLE:
            healthy = await self._healthy(attempt.server)
        if exchange.response is not None and isinstance(ending, Answer):
            ended = self._desk.streamed(attempt, exchange.tail.tokens())
        else:
            ended = self._desk.ended(attempt, ending, exchange.asked, tried, healthy=healthy)
        self._carry_out(ended.effects)
        return ended


def _refuse_hopeless(prospect: Prospect, model: str | None) -> None:
    match prospect:
        case Prospect.SERVED | Prospect.SOON:
            return
        case Prospect.LATER:
            raise _unavailable(f"no server for {model or 'any model'} can be used now")
        case Prospect.NEVER:
            raise ApiError(
                NOT_FOUND, f"the model {model!r} does not exist", code="model_not_found", param="model"
            )
        case _ as never:
            assert_never(never)


def _unavailable(message: str) -> ApiError:
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return ApiError(SERVICE_UNAVAILABLE, message, code="no_server", headers=headers)


def _busy(message: str) -> ApiError:
    return ApiError(TOO_MANY, message, code="overloaded", headers={"Retry-After": str(RETRY_AFTER_S)})


def _response(ending: Ending, judgement: Judgement, journey: Journey) -> web.Response:
    """A server's last word as it is; in our own words where it has none, or they are not for clients."""
    headers = NOT_AGAIN.copy() if journey.is_perilous else {}
    if isinstance(ending, Break):
        if ending.kind in OURS:
            raise _unavailable("the service cannot reach its servers now")
        raise _failed(judgement, headers)
    credentials = ending.status in (UNAUTHORIZED, FORBIDDEN)
    if credentials or ending.status // 100 == 3 or _is_of_another_model(ending, judgement):  # noqa: PLR2004  # 3xx
        raise _failed(judgement, headers)
    headers["Content-Type"] = ending.content_type
    if ending.request_id is not None:
        headers["X-Request-Id"] = ending.request_id
    if ending.retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(ending.retry_after_s))
    return web.Response(status=ending.status, body=ending.body, headers=headers)


def _failed(judgement: Judgement, headers: dict[str, str]) -> ApiError:
    message = f"the servers failed: {judgement.message}"
    return ApiError(BAD_GATEWAY, message, code="server_error", headers=headers)


def _is_of_another_model(ending: Answer, judgement: Judgement) -> bool:
    return judgement.verdict is Verdict.MISMATCH and ending.status // 100 == 2  # noqa: PLR2004  # 2xx

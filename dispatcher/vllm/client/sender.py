"""One request from the client to some server, with all that may come between: the one place that resends."""

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from dispatcher.errors import RequestFailedError
from dispatcher.model import Break, Ending, ErrorCode, Judgement, Request, ServerSpec, Tokens, Verdict
from dispatcher.vllm.client.retry import Course, Policy
from dispatcher.vllm.client.servers import Servers
from dispatcher.vllm.verdicts import judge


class Transport(Protocol):
    """One send over HTTP (`AiohttpTransport`)."""

    async def send(
        self, server: ServerSpec, request: Request, request_id: str, timeout_s: float | None
    ) -> Ending:
        """Post the request's body and return how that ended."""


class Knowledge(Protocol):
    """What is known of servers (`Facts`)."""

    async def roots(self, server: ServerSpec) -> dict[str, str] | None:
        """Its models: served name -> root; None where it lists none."""

    def forget(self, server: ServerSpec) -> None:
        """It may have been restarted."""


class UnansweredError(Exception):
    """A server could not be asked what its body depends on; `ending` is a send's that ended so."""

    def __init__(self, ending: Break) -> None:
        super().__init__(ending)
        self.ending = ending


MakeBody = Callable[[ServerSpec], Awaitable[bytes]]
"""The body for the server that was chosen: versions differ in what they understand."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer, and where it came from."""

    body: bytes
    """One line of strict JSON."""
    tokens: Tokens
    server: ServerSpec
    request_id: str | None
    attempts: int
    """Sends, the last one included."""
    seconds: float
    """Duration of the last send."""


class Sender:
    """Sends requests to servers until they are answered, or cannot be.

    `timeout_s` is for each send; None waits as long as the connection lives. `open_max` sends can be open:
    each has a descriptor of this process. What is above that waits for its turn.
    """

    def __init__(
        self,
        transport: Transport,
        servers: Servers,
        known: Knowledge,
        *,
        max_attempts: int,
        timeout_s: float | None,
        open_max: int,
    ) -> None:
        self._transport = transport
        self._servers = servers
        self._known = known
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(open_max)
        self._policy = Policy(max_attempts, random.random)

    async def send(self, route: str, model: str | None, make_body: MakeBody) -> Reply:
        """Post to a route of some server, for an answer of this model.

        Raises RequestFailedError, and what `make_body` raises.
        """
        course, request_id = Course(), uuid.uuid4().hex
        while True:
            server, judgement = await self._attempt(course, request_id, route, model, make_body)
            if judgement.verdict is Verdict.SUCCESS:
                assert judgement.body is not None
                return Reply(
                    judgement.body,
                    judgement.tokens,
                    server,
                    judgement.request_id,
                    course.sends,
                    course.seconds,
                )
            others = any(
                each.id not in course.tried and each.id != server.id for each in self._servers.listed()
            )
            pause_s = self._policy.pause_after(course, judgement, server.id, others=others)
            if pause_s is None:
                raise _failed(judgement, server, course.sends)
            await asyncio.sleep(pause_s)

    async def _attempt(
        self, course: Course, request_id: str, route: str, model: str | None, make_body: MakeBody
    ) -> tuple[ServerSpec, Judgement]:
        """Send once. The server, and the turn, are given back before any pause."""
        async with self._turns:
            server, judgement = await self._post(course, request_id, route, model, make_body)
        if judgement.verdict in _LOST:
            self._known.forget(server)
        return server, judgement

    async def _post(
        self, course: Course, request_id: str, route: str, model: str | None, make_body: MakeBody
    ) -> tuple[ServerSpec, Judgement]:
        server = await self._servers.take(course.avoided)
        verdict: Verdict | None = None
        course.sends += 1
        # vLLM refuses an id that is still open, as it is where a broken send has not been noticed there.
        sent_as = request_id if course.sends == 1 else f"{request_id}-{course.sends}"
        try:
            request = Request(0, request_id, route, model, await make_body(server))
            began = time.monotonic()
            ending = await self._transport.send(server, request, sent_as, self._timeout_s)
            course.seconds = time.monotonic() - began
            judgement = await self._judge(ending, request, server)
            verdict = judgement.verdict
        except UnansweredError as error:
            judgement = judge(error.ending, Request(0, request_id, route, model, b""), None)
            verdict = judgement.verdict
        finally:
            self._servers.give_back(server, verdict)
        return server, judgement

    async def _judge(self, ending: Ending, request: Request, server: ServerSpec) -> Judgement:
        """Judge by names first; only an answer under another name needs the server's list of them."""
        judgement = judge(ending, request, {})
        if judgement.verdict is not Verdict.MISMATCH or judgement.code is not ErrorCode.MODEL_NOT_FOUND:
            return judgement
        return judge(ending, request, await self._known.roots(server))


_LOST: Final = frozenset({Verdict.SERVER_FAULT, Verdict.STALE_CONNECTION})


def _failed(judgement: Judgement, server: ServerSpec, sends: int) -> RequestFailedError:
    assert judgement.code is not None
    return RequestFailedError(
        judgement.message,
        judgement.code,
        status=judgement.status,
        request_id=judgement.request_id,
        server=server.id,
        attempts=sends,
    )

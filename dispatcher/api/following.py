"""The attempts of one live request, as a tracer is told of them, and the log of those that failed."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import structlog

from dispatcher.api.exchange import Exchange
from dispatcher.dispatch.turns import LiveAttempt
from dispatcher.model import Judgement, Verdict
from dispatcher.ports import Sent, Span, Tracer

TRACE_CONTEXT: Final = ("traceparent", "tracestate")
"""The headers of W3C Trace Context, by which the client's own span becomes the parent of ours."""


class Following:
    """A context manager: an attempt that is open where it is left has ended unjudged.

    `prompts`: whether the log may hold what servers say.
    """

    def __init__(
        self, tracer: Tracer | None, headers: Mapping[str, str], exchange: Exchange, *, prompts: bool
    ) -> None:
        self._tracer = tracer
        self._exchange = exchange
        self._prompts = prompts
        self._attempt: LiveAttempt | None = None
        self._parent: Mapping[str, str] = {}
        self._span: Span | None = None
        self._since = 0.0
        self._sends = 0
        if tracer is not None:
            self._parent = {name: headers[name] for name in TRACE_CONTEXT if name in headers}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended(None)

    def waits(self) -> None:
        """The request is ready, and waits for a permit."""
        if self._tracer is not None:
            self._since = asyncio.get_running_loop().time()

    def sent(self, attempt: LiveAttempt) -> None:
        """It has its permit, and goes out in the running task."""
        self._attempt = attempt
        if self._tracer is None:
            return
        self._sends += 1
        asked = self._exchange.asked
        facts = Sent(
            server=attempt.server.spec.id,
            route=asked.url,
            model=asked.model,
            request_id=self._exchange.request_id,
            queue_s=asyncio.get_running_loop().time() - self._since,
            sends=self._sends,
        )
        self._span = self._tracer.begin(facts, self._parent)
        self._parent = self._parent or self._span.headers

    def ended(self, judgement: Judgement | None) -> None:
        """How the attempt that was sent last has ended."""
        span, self._span = self._span, None
        if span is not None:
            span.end(judgement)
        if judgement is not None and judgement.verdict is not Verdict.SUCCESS:
            self._say(judgement)

    def _say(self, judgement: Judgement) -> None:
        assert self._attempt is not None, "what is judged was sent"
        structlog.get_logger("dispatcher.live").debug(
            "attempt_failed",
            request_id=self._exchange.request_id,
            server=self._attempt.server.spec.id,
            verdict=judgement.verdict.value,
            reason=judgement.message if self._prompts else judgement.plainly,
        )

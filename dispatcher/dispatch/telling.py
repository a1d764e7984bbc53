"""Tells of attempts: a tracer, where there is one, of each, and the log of those that failed."""

import structlog

from dispatcher.dispatch.attempt import Attempt
from dispatcher.model import Judgement, Verdict
from dispatcher.ports import Sent, Tracer

BODY_BYTES_MAX = 2048
"""What the log may hold of one request's body, where it may hold any."""


class Telling:
    """Told when an attempt is sent, and how it ended.

    `prompts`: whether the log may hold what requests and servers say.
    """

    def __init__(self, tracer: Tracer | None, *, prompts: bool) -> None:
        self._tracer = tracer
        self._prompts = prompts
        self._log = structlog.get_logger("dispatcher.node")

    def sent(self, attempt: Attempt) -> None:
        """The attempt goes out, in the running task."""
        if self._tracer is None:
            return
        item = attempt.item
        facts = Sent(
            server=attempt.server.spec.id,
            route=item.request.url,
            model=item.request.model,
            request_id=attempt.request_id,
            queue_s=0.0 if attempt.is_copy else max(0.0, attempt.sent_at - item.ready_at),
            sends=item.sends,
            is_copy=attempt.is_copy,
            job=item.lease.job.id,
            index=item.request.index,
        )
        attempt.span = self._tracer.begin(facts, item.trace)
        item.trace = item.trace or attempt.span.headers

    def ended(self, attempt: Attempt, judgement: Judgement | None) -> None:
        """The attempt has ended; None where its request had its outcome already."""
        if attempt.span is not None:
            attempt.span.end(judgement)
        if judgement is not None and judgement.verdict is not Verdict.SUCCESS:
            self._say(attempt, judgement)

    def _say(self, attempt: Attempt, judgement: Judgement) -> None:
        item = attempt.item
        self._log.debug(
            "attempt_failed",
            job=item.lease.job.id,
            custom_id=item.request.custom_id,
            request_id=attempt.request_id,
            server=attempt.server.spec.id,
            verdict=judgement.verdict.value,
            reason=judgement.message if self._prompts else judgement.plainly,
            **({"body": _head(item.request.body)} if self._prompts else {}),
        )


def _head(body: bytes) -> str:
    return body[:BODY_BYTES_MAX].decode("utf-8", "replace")

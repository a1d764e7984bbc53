"""What becomes of a request: its outcome, another send, or nothing here any more."""

from collections.abc import Collection

from msgspec.structs import replace

from dispatcher.config import DispatchSettings
from dispatcher.dispatch.attempt import Attempt
from dispatcher.dispatch.backlog import Backlog
from dispatcher.dispatch.item import Item
from dispatcher.dispatch.outcomes import outcome_of, poisoned
from dispatcher.dispatch.quarantine import SUSPECT_PAUSE_S, Quarantine, may_be_last_words
from dispatcher.dispatch.quotas import Quotas
from dispatcher.dispatch.retry import Again, Fail, after_fault
from dispatcher.dispatch.shards import ShardsInHand
from dispatcher.model import NO_TOKENS, AgainReason, ErrorCode, Judgement, Outcome, Request, Verdict
from dispatcher.ports import Asked, Counted, Review, Unfinished, Unusable
from dispatcher.telemetry.metrics import Metrics


class Fates:
    """Decides it, and lets all who keep account of the request know."""

    def __init__(
        self,
        shards: ShardsInHand,
        backlog: Backlog,
        quotas: Quotas,
        quarantine: Quarantine,
        settings: DispatchSettings,
        metrics: Metrics,
        review: Review | None,
    ) -> None:
        self._shards = shards
        self._backlog = backlog
        self._quotas = quotas
        self._quarantine = quarantine
        self._settings = settings
        self._metrics = metrics
        self._review = review

    def resolve(self, attempt: Attempt, judgement: Judgement, now: float) -> Outcome | None:
        """The outcome of a request whose attempt was judged. None where it is sent again, or is not ours."""
        if judgement.verdict in (Verdict.SUCCESS, Verdict.REQUEST_FAULT):
            self._quarantine.answered(attempt)
        outcome = self._outcome(attempt, judgement, now)
        if outcome is not None:
            self._quarantine.ended(attempt.item)
            self._quotas.ended(attempt.item.lease.job.id)
            attempt.item.done = True
        return outcome

    def forget(self, items: Collection[Item]) -> None:
        """These requests are in hand no more, without an outcome."""
        self._quarantine.dropped(items)
        for item in items:
            self._quotas.ended(item.lease.job.id)

    def _outcome(self, attempt: Attempt, judgement: Judgement, now: float) -> Outcome | None:
        item = attempt.item
        if judgement.verdict is Verdict.SUCCESS:
            return self._reviewed(attempt, judgement, now)
        if item.poison:
            return poisoned(item, attempt.server)
        if attempt.unsent:  # its server was lost first
            item.sends -= 1
            self._put_back(item, now, now)
            return None
        match after_fault(item, judgement, attempt.server.spec.id, self._settings):
            case Again(delay_s):
                self._quarantine.noted(attempt, judgement, now)
                waits = item.suspect or may_be_last_words(judgement)
                pause_s = max(delay_s, SUSPECT_PAUSE_S) if waits else delay_s
                self._put_back(item, now + pause_s, now)
                return None
            case Fail(code, message):
                return _failed(attempt, judgement, code, message, now)

    def _reviewed(self, attempt: Attempt, judgement: Judgement, now: float) -> Outcome | None:
        """The outcome of a success, unless its job has no use for it, or asks for more."""
        if self._review is None:
            return outcome_of(attempt, judgement, None, "", now)
        item = attempt.item
        if item.notes is not None and attempt.request is not item.request:
            # Its copy was answered first, and another question stands.
            item.spent += judgement.tokens
            self._put_back(item, now, now)
            return None
        asked = Asked(item.asked_again, attempt.server.context_tokens_of(attempt.request.model), item.notes)
        match self._review(attempt.request, judgement, asked):
            case None:
                return outcome_of(attempt, judgement, None, "", now)
            case Counted(body):
                counted = replace(item.so_far or judgement, body=body, tokens=judgement.tokens)
                return outcome_of(attempt, counted, None, "", now)
            case Unusable(message, again, reason):
                if again is None:
                    return outcome_of(attempt, judgement, ErrorCode.INVALID_ANSWER, message, now)
                item.complaint = message
                item.asked_again += 1
                self._ask(attempt, judgement, again, reason, now)
            case Unfinished(again, so_far, notes):
                item.notes = notes
                if so_far is not None:
                    item.so_far = replace(item.so_far or judgement, body=so_far, tokens=NO_TOKENS)
                self._ask(attempt, judgement, again, AgainReason.UNFINISHED, now)
        return None

    def _ask(
        self, attempt: Attempt, judgement: Judgement, again: Request, reason: AgainReason, now: float
    ) -> None:
        """Ask another question about the same request. What was answered has cost its tokens."""
        item = attempt.item
        item.request = again
        item.spent += judgement.tokens
        self._metrics.asked_again(reason)
        self._put_back(item, now, now)

    def _put_back(self, item: Item, not_before: float, now: float) -> None:
        if item.running:  # its other attempt is the next one
            return
        shard = self._shards.get(item.lease)
        if shard is None or shard.withdrawn:
            self.forget([item])
        else:
            item.ready_at = not_before
            self._backlog.put_back(item, not_before, now)


def _failed(attempt: Attempt, judgement: Judgement, code: ErrorCode, message: str, now: float) -> Outcome:
    """The outcome of a request that has no more attempts."""
    item = attempt.item
    if item.so_far is not None:  # only a further question has failed
        return outcome_of(attempt, item.so_far, None, "", now)
    if item.notes is not None:
        message = f"{attempt.request.url}: {message}"
    elif item.complaint and judgement.verdict is Verdict.REQUEST_FAULT:
        # It was good until we changed it: its fault is still that its answers were of no use.
        code, message = ErrorCode.INVALID_ANSWER, f"{item.complaint}; asked again: {message}"
    return outcome_of(attempt, judgement, code, message, now)

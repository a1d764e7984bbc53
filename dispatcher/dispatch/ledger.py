"""What each job's durable outcomes add up to, for as long as somebody follows the job."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dispatcher.dispatch.progress import RATE_WINDOW_S
from dispatcher.dispatch.shards import ShardInHand
from dispatcher.model import JobId, Outcome, Tally


@dataclass(slots=True)
class _Account:
    settled: Tally
    since: float
    shards_settled: int
    laid_aside: dict[int, Tally] = field(default_factory=dict)
    """What shards had that went back to the queue, by number: until they are in hand again."""
    rows: int = 0
    tokens: int = 0
    samples: deque[tuple[float, int, int]] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a job is. Rates are over the last minute."""

    tally: Tally
    """Durable outcomes of settled shards, of those in hand, and of those that went back unfinished."""
    shards_settled: int = 0
    rows_per_s: float = 0.0
    tokens_per_s: float = 0.0
    """Generated tokens."""


class Ledger:
    """Accounts of jobs. Jobs that nobody follows cost nothing here.

    `settled` is called where a job's shard was settled: whoever waits for its last one need not ask.
    """

    def __init__(self) -> None:
        self.settled: Callable[[JobId], None] = lambda _job: None
        self._accounts: dict[JobId, _Account] = {}

    def follow(self, job: JobId, settled: Tally, shards_settled: int, now: float) -> None:
        """Keep account of a job of which so much is settled; anew, where it had an account."""
        self._accounts[job] = _Account(settled, now, shards_settled)

    def forget(self, job: JobId) -> None:
        """Nobody follows this job any more."""
        self._accounts.pop(job, None)

    def shards_settled(self, job: JobId) -> int:
        """How many of a followed job's shards are settled."""
        account = self._accounts.get(job)
        return 0 if account is None else account.shards_settled

    def recorded(self, job: JobId, outcomes: Sequence[Outcome]) -> None:
        """Count outcomes that have become durable, for the rates."""
        if (account := self._accounts.get(job)) is not None:
            account.rows += len(outcomes)
            account.tokens += sum(outcome.tokens.completion for outcome in outcomes)

    def took(self, shard: ShardInHand) -> None:
        """A shard is in hand: what was laid aside of it is in its tally."""
        if (account := self._accounts.get(shard.lease.job.id)) is not None:
            account.laid_aside.pop(shard.lease.shard.number, None)

    def gave_back(self, shard: ShardInHand) -> None:
        """A shard goes back to the queue unfinished: what it has stays in its journal."""
        if (account := self._accounts.get(shard.lease.job.id)) is not None:
            account.laid_aside[shard.lease.shard.number] = shard.tally

    def settle(self, shard: ShardInHand) -> None:
        """A shard was settled."""
        if (account := self._accounts.get(shard.lease.job.id)) is not None:
            account.settled += shard.tally
            account.shards_settled += 1
        self.settled(shard.lease.job.id)

    def sample(self, now: float) -> None:
        """Note where the counts stand: the rates are differences of samples."""
        for account in self._accounts.values():
            samples = account.samples
            samples.append((now, account.rows, account.tokens))
            while now - samples[0][0] > RATE_WINDOW_S and len(samples) > 1:
                samples.popleft()

    def standings(self, in_hand: Iterable[ShardInHand], now: float) -> dict[JobId, Standing]:
        """How far every followed job is, with the shards that are in hand."""
        tallies = {
            job: sum(account.laid_aside.values(), account.settled) for job, account in self._accounts.items()
        }
        for shard in in_hand:
            if (job := shard.lease.job.id) in tallies:
                tallies[job] += shard.tally
        return {job: _standing(account, tallies[job], now) for job, account in self._accounts.items()}


def _standing(account: _Account, tally: Tally, now: float) -> Standing:
    at, rows, tokens = account.samples[0] if account.samples else (account.since, 0, 0)
    seconds = max(1e-3, now - at)
    return Standing(
        tally, account.shards_settled, (account.rows - rows) / seconds, (account.tokens - tokens) / seconds
    )

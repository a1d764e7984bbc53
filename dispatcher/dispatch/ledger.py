"""What each job's durable outcomes add up to, for as long as somebody follows the job."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dispatcher.dispatch.progress import RATE_WINDOW_S
from dispatcher.dispatch.shards import ShardInHand
from dispatcher.model import JobId, Lease, Outcome, Tally

HINDERED_MAX = 8
"""Shards of a job that may wait for a damaged file before no more of the job are leased."""


@dataclass(slots=True)
class _Account:
    settled: Tally
    shards_settled: int
    laid_aside: dict[int, Tally]
    """What shards have that are neither settled nor in hand, by number."""
    aside: Tally = field(default_factory=Tally)
    """What that adds up to."""
    rows: int = 0
    tokens: int = 0
    samples: deque[tuple[float, int, int]] = field(default_factory=deque)
    hindered: dict[int, str] = field(default_factory=dict)
    """Why shards could not be taken in hand, by number: until they are."""
    kept_off: list[tuple[float, Lease]] = field(default_factory=list)
    """Their leases, and since when."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a job is. Rates are over the last minute, or since its first outcome where that is shorter."""

    tally: Tally
    """Durable outcomes of settled shards, of those in hand, and of those that went back unfinished."""
    shards_settled: int = 0
    rows_per_s: float = 0.0
    tokens_per_s: float = 0.0
    """Generated tokens."""
    rates_over_s: float = 0.0
    """How long the time is that the rates are taken over."""
    hindrance: str | None = None
    """Why a shard of it cannot be worked on."""


class Ledger:
    """Accounts of jobs. Jobs that nobody follows cost nothing here.

    `settled` is called where a job's shard was settled: whoever waits for its last one need not ask.
    """

    def __init__(self) -> None:
        self.settled: Callable[[JobId], None] = lambda _job: None
        self._accounts: dict[JobId, _Account] = {}

    def follow(
        self, job: JobId, settled: Tally, shards_settled: int, laid_aside: Mapping[int, Tally]
    ) -> None:
        """Keep account of a job of which so much is settled; anew, where it had an account.

        `laid_aside` is what earlier runs have recorded of shards that are not settled, by number.
        """
        aside = sum(laid_aside.values(), Tally())
        self._accounts[job] = _Account(settled, shards_settled, dict(laid_aside), aside)

    def caught_up(self, job: JobId, settled: Tally, shards_settled: int) -> None:
        """So much of a followed job is settled by now, by whichever node.

        The rates stay this node's own: the others tell theirs.
        """
        account = self._accounts.get(job)
        if account is None or shards_settled <= account.shards_settled:
            return
        account.settled, account.shards_settled = settled, shards_settled
        account.laid_aside.clear()  # what went back from here may be among what others have settled
        account.aside = Tally()

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
            _lay_aside(account, shard.lease.shard.number, None)
            account.hindered.pop(shard.lease.shard.number, None)

    def gave_back(self, shard: ShardInHand) -> None:
        """A shard goes back to the queue unfinished, or is lost: what it has stays in its journal."""
        if (account := self._accounts.get(shard.lease.job.id)) is not None:
            _lay_aside(account, shard.lease.shard.number, shard.tally)

    def settle(self, shard: ShardInHand) -> None:
        """A shard was settled."""
        if (account := self._accounts.get(shard.lease.job.id)) is not None:
            account.settled += shard.tally
            account.shards_settled += 1
        self.settled(shard.lease.job.id)

    # Shards that cannot be taken in hand

    def hindered(self, lease: Lease, why: str, now: float) -> bool:
        """A shard's input or journal cannot be read. False where nobody follows its job, to do about it."""
        account = self._accounts.get(lease.job.id)
        if account is None:
            return False
        account.hindered[lease.shard.number] = why
        account.kept_off.append((now, lease))
        return True

    def is_hindered(self, job: JobId) -> bool:
        """Whether some shard of a followed job cannot be worked on."""
        account = self._accounts.get(job)
        return account is not None and bool(account.hindered)

    def to_be_tried(self, job: JobId, until: float) -> list[Lease]:
        """The leases of shards that were hindered at `until`, or before: they are to go back to the queue."""
        account = self._accounts.get(job)
        if account is None:
            return []
        due = [lease for since, lease in account.kept_off if since <= until]
        account.kept_off = [(since, lease) for since, lease in account.kept_off if since > until]
        return due

    @property
    def stuck(self) -> frozenset[JobId]:
        """Jobs of which enough shards are hindered: nothing more of them is to be leased just now."""
        return frozenset(
            job for job, account in self._accounts.items() if len(account.kept_off) >= HINDERED_MAX
        )

    # Looking

    def sample(self, now: float) -> None:
        """Note where the counts stand: the rates are differences of samples.

        The time before the first outcome says nothing about the rate, and is left out.
        """
        for account in self._accounts.values():
            samples = account.samples
            if not account.rows:
                samples.clear()
            samples.append((now, account.rows, account.tokens))
            while now - samples[0][0] > RATE_WINDOW_S and len(samples) > 1:
                samples.popleft()

    def begin_rates(self, job: JobId) -> None:
        """The job goes on after a pause: what was before says nothing about what will be."""
        if (account := self._accounts.get(job)) is not None:
            account.rows = account.tokens = 0
            account.samples.clear()

    def standings(self, in_hand: Iterable[ShardInHand], now: float) -> dict[JobId, Standing]:
        """How far every followed job is, with the shards that are in hand."""
        tallies = {job: account.settled + account.aside for job, account in self._accounts.items()}
        for shard in in_hand:
            if (job := shard.lease.job.id) in tallies:
                tallies[job] += shard.tally
        return {job: _standing(account, tallies[job], now) for job, account in self._accounts.items()}


def _lay_aside(account: _Account, number: int, tally: Tally | None) -> None:
    before = account.laid_aside.pop(number, None)
    if before is not None:
        account.aside = _less(account.aside, before)
    if tally is not None:
        account.laid_aside[number] = tally
        account.aside += tally


def _less(whole: Tally, part: Tally) -> Tally:
    errors = {code: count - part.errors.get(code, 0) for code, count in whole.errors.items()}
    return Tally(
        whole.succeeded - part.succeeded,
        whole.failed - part.failed,
        whole.prompt_tokens - part.prompt_tokens,
        whole.completion_tokens - part.completion_tokens,
        {code: count for code, count in errors.items() if count},
    )


def _standing(account: _Account, tally: Tally, now: float) -> Standing:
    at, rows, tokens = account.samples[0] if account.samples else (now, account.rows, account.tokens)
    seconds = now - at if account.rows else 0.0
    divisor = max(1.0, seconds)
    return Standing(
        tally,
        account.shards_settled,
        (account.rows - rows) / divisor,
        (account.tokens - tokens) / divisor,
        seconds,
        next(iter(account.hindered.values()), None),
    )

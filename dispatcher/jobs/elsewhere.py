"""What several nodes do for the same jobs, put together: what each tells, and what all have done."""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from dispatcher.dispatch.ledger import Standing
from dispatcher.dispatch.node import Node
from dispatcher.jobs.kept import Kept
from dispatcher.model import JobId, Tally
from dispatcher.queue.nodes import JobFigures, NodeFigures

JOBS_TOLD_MAX = 200
"""Jobs that a node tells of: those with the most in flight. With more, a heartbeat would be a file."""


class Elsewhere:
    """What the other nodes that live do for each job, as they told last."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, JobFigures] = {}

    def told(self, others: Iterable[NodeFigures]) -> None:
        """These are all other nodes that live."""
        jobs: dict[JobId, JobFigures] = {}
        for figures in others:
            for job, theirs in figures.jobs.items():
                jobs[job] = _sum(jobs[job], theirs) if job in jobs else theirs
        self._jobs = jobs

    @property
    def in_flight(self) -> Mapping[JobId, int]:
        """Requests that the others have in flight; jobs without any may be missing."""
        return {job: figures.in_flight for job, figures in self._jobs.items()}

    def joined(
        self, standings: Mapping[JobId, Standing], jobs: Mapping[JobId, Kept]
    ) -> Mapping[JobId, Standing]:
        """How far the jobs are with what the others have in hand. `standings`: how far without."""
        joined = dict(standings)
        for job, theirs in self._jobs.items():
            if job in joined and job in jobs:
                joined[job] = _joined(joined[job], theirs, jobs[job].requests)
        return joined


def figures_of(node: Node, now: float) -> NodeFigures:
    """What a node tells the others just now. The state is another's to say."""
    desk = node.desk
    in_flight = Counter(attempt.item.lease.job.id for attempt in desk.open_attempts())
    in_hand = {job: Tally() for job in in_flight}
    for shard in desk.shards:
        job = shard.lease.job.id
        in_hand[job] = in_hand.get(job, Tally()) + shard.tally
    standings = node.ledger.standings((), now)
    jobs = {
        job: _figures(tally, in_flight[job], standings.get(job, _UNKNOWN)) for job, tally in in_hand.items()
    }
    told = heapq.nlargest(JOBS_TOLD_MAX, jobs, key=lambda job: (jobs[job].in_flight, job))
    return NodeFigures(
        in_flight=desk.in_flight,
        shards_leased=len(desk.shards),
        rows_per_s=sum(figures.rows_per_s for figures in jobs.values()),
        tokens_per_s=sum(figures.tokens_per_s for figures in jobs.values()),
        jobs={job: jobs[job] for job in told},
        hungry=desk.is_hungry(),
    )


_UNKNOWN = Standing(Tally())


def _figures(tally: Tally, in_flight: int, standing: Standing) -> JobFigures:
    rows, tokens = round(standing.rows_per_s, 3), round(standing.tokens_per_s, 1)
    return JobFigures(tally, in_flight, rows, tokens, round(standing.rates_over_s, 1))


def _sum(one: JobFigures, other: JobFigures) -> JobFigures:
    return JobFigures(
        one.in_hand + other.in_hand,
        one.in_flight + other.in_flight,
        one.rows_per_s + other.rows_per_s,
        one.tokens_per_s + other.tokens_per_s,
        max(one.rates_over_s, other.rates_over_s),
    )


def _joined(ours: Standing, theirs: JobFigures, rows: int) -> Standing:
    tally = ours.tally + theirs.in_hand
    if tally.succeeded + tally.failed > rows:  # some of it was settled since they told, and is counted here
        tally = ours.tally
    return replace(
        ours,
        tally=tally,
        rows_per_s=ours.rows_per_s + theirs.rows_per_s,
        tokens_per_s=ours.tokens_per_s + theirs.tokens_per_s,
        rates_over_s=max(ours.rates_over_s, theirs.rates_over_s),
    )

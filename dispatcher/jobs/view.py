"""A job as everybody sees it: the API, the dashboard, the command line."""

from collections.abc import Mapping
from dataclasses import dataclass

from dispatcher.dispatch.ledger import Standing
from dispatcher.jobs.details import Details
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.life import ENDED, Stage, shown
from dispatcher.model import JobId, Tally

RATE_S_MIN = 10.0
"""Since the first outcome, or the first after a pause, until a rate is good for a guess at the end."""
STARVING_S = 60.0
"""A job that may be sent and has had nothing in flight for so long is starving."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests of a job. `succeeded` and `failed` are durable."""

    total: int
    succeeded: int
    failed: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class JobView:
    """One job now. Times of day are seconds since the epoch; None where it does not apply."""

    id: str
    owner: str
    status: str
    """As OpenAI's `status` of a batch."""
    paused: bool
    priority: int
    weight: float
    limit: int | None
    max_attempts: int
    model: str | None
    endpoint: str
    metadata: Mapping[str, str] | None
    counts: Counts
    prompt_tokens: int
    completion_tokens: int
    errors: Mapping[str, int]
    """Failed requests by error code."""
    rows_per_s: float
    """Over the last minute, as `tokens_per_s`: generated ones."""
    tokens_per_s: float
    eta_s: float | None
    """At the present rate; None where nothing moves, or the rate is not known yet."""
    slack_s: float | None
    """What is left of the completion window when it is done at the present rate; negative: it will expire."""
    starving: bool
    """Whether it waits for others, or for servers, and has had nothing in flight for a minute."""
    obstacle: str | None
    """Why it does not get on: a full disk, say, or no server."""
    created_at: float
    expires_at: float
    ended_at: float | None
    details: Details


@dataclass(frozen=True, slots=True)
class Now:
    """What the views of one moment are made of."""

    wall: float
    """Seconds since the epoch."""
    monotonic: float
    standings: Mapping[JobId, Standing]
    in_flight: Mapping[JobId, int]
    held_up: str | None = None
    """Why nothing of any job is sent just now; None where that is not so."""


def view_of(kept: Kept, now: Now) -> JobView:
    """The job at that moment."""
    details, job = kept.details, kept.job
    standing = now.standings.get(kept.id) or Standing(details.result or Tally(), kept.shards)
    tally, in_flight = standing.tally, now.in_flight.get(kept.id, 0)
    eta_s = _eta_s(kept, standing)
    return JobView(
        id=kept.id,
        owner=details.owner,
        status=shown(kept.stage),
        paused=details.paused,
        priority=job.priority,
        weight=job.weight,
        limit=job.limit,
        max_attempts=job.max_attempts,
        model=details.model,
        endpoint=details.endpoint,
        metadata=details.metadata,
        counts=Counts(kept.requests, tally.succeeded, tally.failed, in_flight),
        prompt_tokens=tally.prompt_tokens,
        completion_tokens=tally.completion_tokens,
        errors=tally.errors,
        rows_per_s=standing.rows_per_s,
        tokens_per_s=standing.tokens_per_s,
        eta_s=eta_s,
        slack_s=slack_s(kept, standing, now.wall),
        starving=is_starving(kept, in_flight, now.monotonic),
        obstacle=kept.obstacle or standing.hindrance or _held_up(kept, now, in_flight),
        created_at=kept.created_at,
        expires_at=details.expires_at,
        ended_at=details.at(kept.stage) if kept.stage in ENDED else None,
        details=details,
    )


def _held_up(kept: Kept, now: Now, in_flight: int) -> str | None:
    """What holds up all jobs, of one that would be sent otherwise."""
    may_be_sent = kept.stage is Stage.IN_PROGRESS and not kept.details.paused
    return now.held_up if may_be_sent and not in_flight else None


def is_starving(kept: Kept, in_flight: int, monotonic: float) -> bool:
    """Whether a job that may be sent has had nothing in flight for a minute."""
    if kept.stage is not Stage.IN_PROGRESS or kept.details.paused or in_flight or kept.busy_at is None:
        return False
    return monotonic - kept.busy_at >= STARVING_S


def slack_s(kept: Kept, standing: Standing, wall: float) -> float | None:
    """What is left of a job's window when it is done at its present rate; None while that is not known."""
    eta_s = _eta_s(kept, standing)
    return None if eta_s is None else kept.details.expires_at - wall - eta_s


def _eta_s(kept: Kept, standing: Standing) -> float | None:
    if kept.stage is not Stage.IN_PROGRESS or kept.details.paused or standing.rows_per_s <= 0:
        return None
    if standing.rates_over_s < RATE_S_MIN:
        return None
    done = standing.tally.succeeded + standing.tally.failed
    return max(0, kept.requests - done) / standing.rows_per_s

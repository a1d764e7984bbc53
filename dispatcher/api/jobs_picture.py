"""The jobs as a dashboard shows them: open ones first, then those that ended last."""

import msgspec

from dispatcher.jobs.overview import Overview
from dispatcher.jobs.view import JobView

OPEN_SHOWN_MAX = 200
NAME_KEYS = ("name", "title", "description", "job_name", "jobDescription")
"""Keys of the metadata that are taken for a job's name: what clients of the Batch API are seen to use."""
NAME_CHARACTERS_MAX = 120
MESSAGE_CHARACTERS_MAX = 300
PAUSED = "paused"
PAUSABLE = ("validating", "in_progress")


class JobCard(msgspec.Struct, frozen=True, gc=False):
    """One job. `_s` are seconds; rates are over the last minute."""

    id: str
    name: str
    """From its metadata; empty where that has none."""
    owner: str
    endpoint: str
    status: str
    """Its status in the Batch API, or `paused`."""
    age_s: float
    ended_ago_s: float | None
    rows: int
    succeeded: int
    failed: int
    rows_per_s: float
    tokens_per_s: float
    eta_s: float | None
    slack_s: float | None
    """How long before its deadline it will be done; negative where it will be late, None where unknown."""
    priority: int
    errors: dict[str, int]
    """Failed rows by error code."""
    message: str = ""
    """Why it does not get on, or has failed."""


class JobsPicture(msgspec.Struct, frozen=True):
    """The viewer's jobs at one moment."""

    shown: tuple[JobCard, ...]
    total: int
    running: int
    rows_left: int


def picture_jobs(overview: Overview, wall: float) -> JobsPicture:
    """One owner's jobs, or all. `wall`: seconds since the epoch."""
    going = sorted(overview.open, key=lambda view: -view.priority)
    return JobsPicture(
        shown=tuple(_card(view, wall) for view in (*going[:OPEN_SHOWN_MAX], *overview.ended)),
        total=overview.total,
        running=sum(not view.paused for view in going),
        rows_left=sum(view.counts.total - view.counts.succeeded - view.counts.failed for view in going),
    )


def _card(view: JobView, wall: float) -> JobCard:
    counts = view.counts
    return JobCard(
        id=view.id,
        name=_name(view),
        owner=view.owner,
        endpoint=view.endpoint,
        status=PAUSED if view.paused and view.status in PAUSABLE else view.status,
        age_s=round(wall - view.created_at, 1),
        ended_ago_s=None if view.ended_at is None else round(wall - view.ended_at, 1),
        rows=counts.total,
        succeeded=counts.succeeded,
        failed=counts.failed,
        rows_per_s=round(view.rows_per_s, 3),
        tokens_per_s=round(view.tokens_per_s, 1),
        eta_s=view.eta_s,
        slack_s=view.slack_s,
        priority=view.priority,
        errors=dict(view.errors),
        message=_message(view)[:MESSAGE_CHARACTERS_MAX],
    )


def _name(view: JobView) -> str:
    metadata = view.metadata or {}
    return next((metadata[key] for key in NAME_KEYS if metadata.get(key)), "")[:NAME_CHARACTERS_MAX]


def _message(view: JobView) -> str:
    if view.obstacle is not None:
        return view.obstacle
    if view.starving:
        return "has had nothing in flight for a minute: it waits for other jobs, or for servers"
    if view.details.errors:
        first = view.details.errors[0]
        return first.message if first.line is None else f"line {first.line}: {first.message}"
    return ""

"""How many rows an owner may have queued: checked when those of a new job have been counted. Pure."""

from collections.abc import Iterable, Mapping

from dispatcher.dispatch.ledger import Standing
from dispatcher.jobs.details import LineError
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.life import ENDED
from dispatcher.model import JobId


def excess(
    kept: Kept, rows: int, jobs: Iterable[Kept], standings: Mapping[JobId, Standing]
) -> LineError | None:
    """What is wrong with a job of so many rows, beside the others of its owner; None for nothing."""
    limit = kept.details.rows_max
    if limit is None:
        return None
    others = (each for each in jobs if each is not kept and each.details.owner == kept.details.owner)
    queued = sum(_queued(each, standings.get(each.id)) for each in others if each.stage not in ENDED)
    if queued + rows <= limit:
        return None
    message = f"the input has {rows:,} requests: this key may have {limit:,} rows queued, and has {queued:,}"
    return LineError("queued_rows_exceeded", message)


def _queued(kept: Kept, standing: Standing | None) -> int:
    done = 0 if standing is None else standing.tally.succeeded + standing.tally.failed
    return kept.requests - done

"""How many jobs, and rows of them, the holder of a key may have open."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from dispatcher.api.errors import ApiError
from dispatcher.api.keyring import Principal
from dispatcher.config import KeyLimits
from dispatcher.jobs.jobs import Jobs
from dispatcher.jobs.life import ENDED
from dispatcher.jobs.view import JobView

TOO_MANY = 429


class Admission:
    """Lets a key's jobs in one after the other: of many sent at once, no more than may be."""

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Lock] = {}
        """By the names of keys, of which there are few."""

    @asynccontextmanager
    async def one_more(self, principal: Principal, jobs: Jobs, rows: int = 0) -> AsyncIterator[None]:
        """Open one more job within this. Raises ApiError (429) where there are as many as may be.

        `rows` are those that are known to be queued with it: of a new job they are not counted yet.
        """
        limits = principal.limits
        if limits.open_jobs is None and limits.queued_rows is None:
            yield
            return
        async with self._turns.setdefault(principal.name, asyncio.Lock()):
            check_limits(limits, jobs.open(principal.name), rows)
            yield


def check_limits(limits: KeyLimits, jobs: Sequence[JobView], more_rows: int = 0) -> None:
    """Raises ApiError (429) where the owner of these jobs may not have one more, with so many rows."""
    opened = [job for job in jobs if job.details.stage not in ENDED]
    if limits.open_jobs is not None and len(opened) >= limits.open_jobs:
        message = f"this key may have {limits.open_jobs} open batches"
        raise ApiError(TOO_MANY, message, code="open_jobs_exceeded")
    rows = sum(job.counts.total - job.counts.succeeded - job.counts.failed for job in opened)
    if limits.queued_rows is not None and rows + max(1, more_rows) > limits.queued_rows:
        message = f"this key may have {limits.queued_rows} rows queued"
        raise ApiError(TOO_MANY, message, code="queued_rows_exceeded")

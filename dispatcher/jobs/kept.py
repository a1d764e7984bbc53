"""One job as this process keeps it in memory, beside its row in the queue."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dispatcher.jobs.details import Details
from dispatcher.jobs.life import Stage
from dispatcher.model import Job, JobId
from dispatcher.queue.custody import Custody
from dispatcher.queue.records import JobRecord


@dataclass(slots=True, eq=False)
class Kept:
    """Changed under its lock only, so that what is in memory and what is in the queue stay the same."""

    job: Job
    details: Details
    created_at: float
    """Seconds since the epoch."""
    shards: int = 0
    requests: int = 0
    obstacle: str | None = None
    """Why it does not get on just now: a full disk, say."""
    busy_at: float | None = None
    """When it last had requests in flight; by the monotonic clock."""
    untouched: bool = False
    """Whether it cannot have shards yet, as nobody has begun to read its input."""
    driven: bool = False
    """Whether a task takes it through its life just now: never two of them."""
    released: bool = False
    """Whether its journals and its input are gone, for nobody can want them any more."""
    known: Mapping[str, Any] | None = None
    """The details as the queue has them, those of a newer dispatcher included; None: as they are here."""
    custody: Custody | None = None
    """This node's right to drive it, where nodes share the queue."""
    held: Custody | None = None
    """The custody that the step began with which is being done: all that the step writes is fenced by it."""
    asked_at: float = -math.inf
    """When the queue was last asked whether its shards are all settled; by the monotonic clock."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set where its keeper is to look at it."""

    @property
    def id(self) -> JobId:
        """Its name, in the API as well."""
        return self.job.id

    @property
    def stage(self) -> Stage:
        """Where it is."""
        return self.details.stage

    def counted(self, record: JobRecord) -> None:
        """Take over what the queue knows of its size."""
        self.shards, self.requests = record.shards, record.requests


def kept_of(record: JobRecord, details: Details) -> Kept:
    """A job that an earlier process has kept."""
    kept = Kept(record.job, details, record.created_at, known=record.details)
    kept.counted(record)
    return kept

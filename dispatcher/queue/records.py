"""What the queue tells of jobs and shards, and how rows of the tables become records."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from typing import Any

import msgspec

from dispatcher.errors import LeaseLostError
from dispatcher.model import Job, JobId, Lease, NodeId, QueueDepth, Shard, Tally

Row = Mapping[str, Any]


class JobStatus(StrEnum):
    """Where a job is. Only the shards of an active job are leased."""

    PREPARING = auto()  # its input is being read
    ACTIVE = auto()
    PAUSED = auto()
    CANCELLED = auto()
    FINISHED = auto()


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as the queue knows it."""

    job: Job
    details: Mapping[str, Any]
    """What the application gave when it created the job; the queue does not look inside."""
    status: JobStatus
    created_at: float
    """Seconds since the epoch."""
    priority: int
    weight: float
    shards: int
    shards_settled: int
    rows: int
    """Non-blank lines of the input, the rejected ones included."""
    rejected: int

    @property
    def requests(self) -> int:
        """How many outcomes the job owes."""
        return self.rows - self.rejected


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A shard as the queue knows it. `tally` is None until it is settled."""

    shard: Shard
    epoch: int
    tally: Tally | None


def lease_key(lease: Lease) -> tuple[JobId, int, int]:
    """What tells a lease from every other one, earlier ones of the same shard included."""
    return lease.job.id, lease.shard.number, lease.epoch


def lease_lost(node: NodeId, lease: Lease) -> LeaseLostError:
    """The error of a node that works on a shard which is no longer its own."""
    return LeaseLostError(
        f"shard {lease.shard.number} of job {lease.job.id}: the lease of node {node} (epoch {lease.epoch}) "
        "was taken over; whoever holds it now settles it"
    )


def job_settings(job: Job) -> dict[str, Any]:
    """The job's knobs, as they are stored."""
    settings: dict[str, Any] = msgspec.to_builtins(job)
    return settings


def read_job(row: Row) -> Job:
    """A row's `settings` as a job. A knob of a newer dispatcher is ignored, a missing one has its default."""
    return replace(msgspec.convert(row["settings"], Job), weight=row["weight"])


def read_job_record(row: Row) -> JobRecord:
    """A whole row of `jobs`."""
    return JobRecord(
        job=read_job(row),
        details=row["details"],
        status=JobStatus(row["status"]),
        created_at=row["created_at"],
        priority=row["priority"],
        weight=row["weight"],
        shards=row["shards"],
        shards_settled=row["shards_settled"],
        rows=row["rows"],
        rejected=row["rejected"],
    )


def shard_row(job_id: JobId, shard: Shard) -> dict[str, Any]:
    """A new shard, free and never leased, as a row of `shards`."""
    return {
        "job_id": job_id,
        "number": shard.number,
        "first_index": shard.first_index,
        "count": shard.count,
        "offset": shard.offset,
        "length": shard.length,
        "rejected": list(shard.rejected),
        "requests": shard.requests,
        "epoch": 0,
    }


def read_shard(row: Row) -> Shard:
    """A row of `shards` as the run of lines it stands for."""
    return Shard(
        number=row["number"],
        first_index=row["first_index"],
        count=row["count"],
        offset=row["offset"],
        length=row["length"],
        rejected=tuple(row["rejected"]),
    )


def read_next_lease(job: Job, row: Row) -> Lease:
    """The lease that taking this free shard makes: one epoch later."""
    return Lease(job, read_shard(row), row["epoch"] + 1)


def read_shard_record(row: Row) -> ShardRecord:
    """A whole row of `shards`."""
    return ShardRecord(read_shard(row), row["epoch"], _read_tally(row))


def read_depth(row: Row) -> QueueDepth:
    """The row of `statements.depth`."""
    return QueueDepth(
        shards_ready=row["shards"] - row["shards_settled"] - row["shards_leased"],
        shards_leased=row["shards_leased"],
        shards_settled=row["shards_settled"],
        requests_ready=row["requests"] - row["requests_settled"] - row["requests_leased"],
        requests_leased=row["requests_leased"],
        requests_settled=row["requests_settled"],
    )


def _read_tally(row: Row) -> Tally | None:
    if row["settled_at"] is None:
        return None
    return Tally(
        succeeded=row["succeeded"],
        failed=row["failed"],
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
        errors=row["errors"] or {},
    )

"""Every statement of the queue, the same for SQLite and PostgreSQL.

`now` is an expression, for the time of a lease is the database's own where nodes on several machines share
it. A shard is *open* until it is settled. An open shard is *leased* while it has a node and its lease has not
expired; otherwise it is *ready*.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Delete,
    Insert,
    Select,
    Update,
    and_,
    cast,
    delete,
    func,
    insert,
    or_,
    select,
    true,
    tuple_,
    update,
)

from dispatcher.model import JobId, Lease, NodeId, Tally
from dispatcher.queue.records import JobStatus, lease_key
from dispatcher.queue.schema import jobs, shards

Time = ColumnElement[float]

_open = shards.c.settled_at.is_(None)
_active = jobs.c.status == JobStatus.ACTIVE.value


def _leased(now: Time) -> ColumnElement[bool]:
    # Not `IS NOT NULL`, which says the same: SQLite would not see that the index of leased shards is best.
    return and_(_open, shards.c.node > "", shards.c.lease_expires_at > now)


def _sum(values: ColumnElement[int]) -> ColumnElement[Any]:
    """0 of nothing. PostgreSQL makes a decimal number of a sum of large ones."""
    return cast(func.coalesce(func.sum(values), 0), BigInteger)


def _of(job_id: JobId) -> ColumnElement[bool]:
    return shards.c.job_id == job_id


def _held(node: NodeId, lease: Lease) -> ColumnElement[bool]:
    """This lease, if it is still the node's: the fence."""
    return and_(
        _of(lease.job.id),
        shards.c.number == lease.shard.number,
        shards.c.epoch == lease.epoch,
        shards.c.node == node,
    )


def _held_among(node: NodeId, leases: Sequence[Lease]) -> ColumnElement[bool]:
    """Those of the leases that are still the node's."""
    keys = tuple_(shards.c.job_id, shards.c.number, shards.c.epoch).in_(map(lease_key, leases))
    return and_(keys, shards.c.node == node, _numbered_among(leases))


def _numbered_among(leases: Sequence[Lease]) -> ColumnElement[bool]:
    """Implied by the keys, but SQLite finds rows by this, and would scan the table for the tuples."""
    return and_(
        shards.c.job_id.in_(sorted({lease.job.id for lease in leases})),
        shards.c.number.in_(sorted({lease.shard.number for lease in leases})),
    )


# The node's side.


def shares(now: Time, without: Collection[JobId] = ()) -> Select[Any]:
    """The active jobs with ready shards, less those `without`, each with its leased requests (`leased`)."""
    names = ("id", "settings", "created_at", "priority", "weight", "shards", "rows", "rejected")
    return (
        select(*(jobs.c[name] for name in names), _sum(shards.c.requests).label("leased"))
        .select_from(jobs.outerjoin(shards, and_(shards.c.job_id == jobs.c.id, _leased(now))))
        .where(_active, jobs.c.id.not_in(sorted(without)))
        .group_by(jobs.c.id)
        .having(jobs.c.shards > jobs.c.shards_settled + func.count(shards.c.number))
    )


def ready(job_id: JobId, after: int, now: Time, limit: int) -> Select[Any]:
    """The job's next ready shards after number `after`, locked, without those that another node is taking."""
    return (
        select(shards)
        .where(
            _of(job_id),
            shards.c.number > after,
            _open,
            or_(shards.c.node.is_(None), shards.c.lease_expires_at <= now),
        )
        .order_by(shards.c.number)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )


def claim(node: NodeId, leases: Sequence[Lease], now: Time, lease_s: float) -> Update:
    """Lease the shards that `ready` gave, in the same transaction: it holds their locks."""
    keys = tuple_(shards.c.job_id, shards.c.number).in_(lease_key(lease)[:2] for lease in leases)
    return (
        update(shards)
        .where(keys, _numbered_among(leases))
        .values(node=node, epoch=shards.c.epoch + 1, lease_expires_at=now + lease_s, succeeded=None)
    )


def renew(node: NodeId, leases: Sequence[Lease], now: Time, lease_s: float) -> Update:
    """Prolong the leases that are still the node's, and return their `lease_key`s.

    A shard that the node has settled in the meantime is among them: its lease was not lost.
    """
    return (
        update(shards)
        .where(_held_among(node, leases))
        .values(lease_expires_at=now + lease_s)
        .returning(shards.c.job_id, shards.c.number, shards.c.epoch)
    )


def release(node: NodeId, leases: Sequence[Lease]) -> Update:
    """Give back the leases that are still the node's."""
    return update(shards).where(_held_among(node, leases), _open).values(node=None, lease_expires_at=None)


def settle(node: NodeId, lease: Lease, tally: Tally, now: Time) -> Update:
    """Settle the shard if the lease is still the node's, and return its number of requests."""
    return (
        update(shards)
        .where(_held(node, lease), _open)
        .values(
            settled_at=now,
            succeeded=tally.succeeded,
            failed=tally.failed,
            prompt_tokens=tally.prompt_tokens,
            completion_tokens=tally.completion_tokens,
            errors=tally.errors or None,
        )
        .returning(shards.c.requests)
    )


def settled_by(node: NodeId, lease: Lease) -> Select[Any]:
    """A row if this very lease has settled the shard."""
    return select(shards.c.number).where(_held(node, lease), shards.c.settled_at.is_not(None))


def depth(now: Time) -> Select[Any]:
    """One row: the active jobs' shards and requests, in all, leased and settled."""
    total = (
        select(
            _sum(jobs.c.shards).label("shards"),
            _sum(jobs.c.rows - jobs.c.rejected).label("requests"),
            _sum(jobs.c.shards_settled).label("shards_settled"),
            _sum(jobs.c.requests_settled).label("requests_settled"),
        )
        .where(_active)
        .subquery()
    )
    leased = (
        select(
            func.count().label("shards_leased"),
            _sum(shards.c.requests).label("requests_leased"),
        )
        .select_from(shards.join(jobs))
        .where(_active, _leased(now))
        .subquery()
    )
    return select(total, leased).select_from(total.join(leased, true()))


# The application's side.


def create_job(row: dict[str, Any], now: Time) -> Insert:
    """A new job without shards."""
    counts = {"shards": 0, "rows": 0, "rejected": 0, "shards_settled": 0, "requests_settled": 0}
    return insert(jobs).values(status=JobStatus.PREPARING.value, created_at=now, **counts, **row)


def discard_job(job_id: JobId) -> Delete:
    """Delete the job; its shards go with it."""
    return delete(jobs).where(jobs.c.id == job_id)


def job(job_id: JobId) -> Select[Any]:
    """The job's row."""
    return select(jobs).where(jobs.c.id == job_id)


def jobs_by_age() -> Select[Any]:
    """All jobs' rows, the oldest first."""
    return select(jobs).order_by(jobs.c.created_at, jobs.c.id)


def count(job_id: JobId, **changes: int) -> Update:
    """Add to the job's counters."""
    return (
        update(jobs)
        .where(jobs.c.id == job_id)
        .values({name: jobs.c[name] + change for name, change in changes.items()})
    )


def set_status(job_id: JobId, status: JobStatus) -> Update:
    """Move the job to another status."""
    return update(jobs).where(jobs.c.id == job_id).values(status=status.value)


def set_details(job_id: JobId, details: dict[str, Any]) -> Update:
    """Replace the job's details."""
    return update(jobs).where(jobs.c.id == job_id).values(details=details)


def set_settings(job_id: JobId, settings: dict[str, Any]) -> Update:
    """Replace the job's knobs."""
    return update(jobs).where(jobs.c.id == job_id).values(settings=settings)


def add_shards() -> Insert:
    """New shards; run with `records.shard_row` of each."""
    return insert(shards)


def shard_of_row(job_id: JobId, index: int) -> Select[Any]:
    """The last shard that starts at the row or before it."""
    return (
        select(shards)
        .where(_of(job_id), shards.c.first_index <= index)
        .order_by(shards.c.first_index.desc())
        .limit(1)
    )


def amend(job_id: JobId, number: int, rejected: list[int], requests: int) -> Update:
    """Replace a shard's rejected rows."""
    return (
        update(shards)
        .where(_of(job_id), shards.c.number == number)
        .values(rejected=rejected, requests=requests)
    )


def settled_by_node(node: NodeId) -> ColumnElement[bool]:
    """Shards that this node has settled."""
    return shards.c.node == node


def tally(job_id: JobId, *conditions: ColumnElement[bool]) -> Select[Any]:
    """One row: the sums over the job's settled shards."""
    names = ("succeeded", "failed", "prompt_tokens", "completion_tokens")
    sums = (_sum(shards.c[name]).label(name) for name in names)
    return select(*sums).where(_of(job_id), shards.c.settled_at.is_not(None), *conditions)


def page(job_id: JobId, after: int, limit: int, *conditions: ColumnElement[bool]) -> Select[Any]:
    """The job's next shards after number `after`, in order."""
    return (
        select(shards)
        .where(_of(job_id), shards.c.number > after, *conditions)
        .order_by(shards.c.number)
        .limit(limit)
    )


def is_settled(settled: bool) -> ColumnElement[bool]:  # noqa: FBT001 - the question's answer
    """Shards that are settled, or those that are not."""
    return shards.c.settled_at.is_not(None) if settled else _open


def begun(job_id: JobId) -> Select[Any]:
    """The job's open shards that have been leased before: they may have outcomes."""
    return select(shards).where(_of(job_id), _open, shards.c.epoch > 0).order_by(shards.c.number)


def has_failures() -> ColumnElement[bool]:
    """Settled shards with failed outcomes."""
    return shards.c.failed > 0


def reopen(job_id: JobId, *conditions: ColumnElement[bool]) -> Update:
    """Make settled shards ready again, and return their numbers and requests. Their epochs stay, to grow.

    What has succeeded in them stays as well, until they are leased: it is known without their journals.
    """
    cleared = dict.fromkeys(("node", "lease_expires_at", "settled_at", "failed", "errors"))
    return (
        update(shards)
        .where(_of(job_id), shards.c.settled_at.is_not(None), *conditions)
        .values(cleared)
        .returning(shards.c.number, shards.c.requests)
    )


def release_all(node: NodeId | None = None) -> Update:
    """Void every lease there is, or every one of a node."""
    held = shards.c.node.is_not(None) if node is None else shards.c.node == node
    return update(shards).where(_open, held).values(node=None, lease_expires_at=None)

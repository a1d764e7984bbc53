"""What every queue in a database must do beside: jobs, and what they add up to. Needs the fixture `sql`."""

import pytest

from dispatcher.errors import LeaseLostError, QueueError
from dispatcher.model import Job, JobId, Shard, Tally
from dispatcher.queue import leasing, paging
from dispatcher.queue.records import JobStatus

A = JobId("a")
DONE = Tally(succeeded=1)


def numbers(leases):
    return [lease.shard.number for lease in leases]


async def settle_all(queue, node, *tallies):
    for lease, tally in zip(await queue.lease(node, 10_000), tallies, strict=True):
        await queue.settle(node, lease, tally)


async def test_a_higher_priority_is_served_first(sql, shards, node):
    await sql.add("a", shards([4, 4]))
    await sql.add("b", shards([4, 4]), priority=1)
    leases = await sql.queue.lease(node, 12)
    assert [lease.job.id for lease in leases] == ["b", "b", "a"]


async def test_leased_requests_are_kept_proportional_to_the_weights(sql, shards, node):
    await sql.add("a", shards([1] * 40))
    await sql.add("b", shards([1] * 40), weight=3)
    leases = await sql.queue.lease(node, 40)
    assert sum(lease.job.id == "b" for lease in leases) == 30


async def test_a_weight_of_zero_is_refused(sql):
    with pytest.raises(QueueError):
        await sql.queue.create_job(Job(A), {}, weight=0)


@pytest.mark.parametrize("status", [status for status in JobStatus if status is not JobStatus.ACTIVE])
async def test_only_active_jobs_are_leased_and_counted(sql, shards, node, status):
    await sql.add("a", shards([4, 4]))
    await sql.queue.lease(node, 4)
    await sql.queue.set_status(A, status)
    assert await sql.queue.lease(node, 4) == []
    assert (await sql.queue.depth()).drained
    await sql.queue.activate(A)
    assert numbers(await sql.queue.lease(node, 4)) == [1]


async def test_a_job_in_preparation_is_not_leased(sql, shards, node):
    await sql.queue.create_job(Job(A), {})
    await sql.queue.add_shards(A, shards([4]))
    assert await sql.queue.lease(node, 4) == []


async def test_a_job_is_read_back_with_all_its_knobs(sql, shards):
    job = Job(A, 5, 2.5, "small", "large", provenance=False, weight=0.5)
    details = {"input": {"sha256": "ab", "bytes": 17}, "names": ["ä", None]}
    await sql.queue.create_job(job, details, priority=2, weight=0.5)
    await sql.queue.add_shards(A, shards([3, 4]))
    record = await sql.queue.job(A)
    assert (record.job, record.details, record.status) == (job, details, JobStatus.PREPARING)
    assert (record.priority, record.weight, record.created_at) == (2, 0.5, 1000.0)
    assert (record.shards, record.rows, record.rejected, record.requests) == (2, 7, 0, 7)


async def test_all_jobs_are_listed_the_oldest_first(sql, shards):
    await sql.add("b", shards([1]))
    await sql.add("a", shards([1]))
    assert [record.job.id for record in await sql.queue.jobs()] == ["b", "a"]


async def test_a_jobs_details_can_be_replaced(sql):
    await sql.queue.create_job(Job(A), {"bytes": None})
    await sql.queue.set_details(A, {"bytes": 17})
    assert (await sql.queue.job(A)).details == {"bytes": 17}


async def test_a_lease_carries_its_jobs_knobs(sql, shards, node):
    job = Job(A, 5, 2.5, "small", None, provenance=False)
    await sql.queue.create_job(job, {})
    await sql.queue.add_shards(A, shards([3]))
    await sql.queue.activate(A)
    assert [lease.job for lease in await sql.queue.lease(node, 3)] == [job]


async def test_a_jobs_knobs_can_be_replaced_and_the_next_lease_carries_them(sql, shards, node):
    await sql.add("a", shards([3, 3]))
    (before,) = await sql.queue.lease(node, 3)
    changed = Job(A, 7, 2.5, "small", None, provenance=False)
    await sql.queue.set_job(changed)
    (after,) = await sql.queue.lease(node, 3)
    assert before.job != changed == after.job


async def test_a_finished_job_says_so(sql, shards):
    await sql.add("a", shards([1]))
    await sql.queue.finish_job(A)
    assert (await sql.queue.job(A)).status is JobStatus.FINISHED


async def test_there_is_one_job_of_an_id(sql):
    await sql.queue.create_job(Job(A), {})
    with pytest.raises(QueueError):
        await sql.queue.create_job(Job(A), {})


async def test_an_unknown_job_is_none_and_cannot_be_changed(sql, shards):
    assert await sql.queue.job(A) is None
    for change in (
        sql.queue.add_shards(A, shards([1])),
        sql.queue.activate(A),
        sql.queue.set_details(A, {}),
        sql.queue.set_job(Job(A)),
        sql.queue.reopen(A, only_failed=False),
        sql.queue.reject(A, []),
    ):
        with pytest.raises(QueueError, match="there is no job a"):
            await change


async def test_a_shard_that_is_there_already_is_refused_and_nothing_of_its_batch_added(sql, shards):
    await sql.add("a", shards([2, 2]))
    with pytest.raises(QueueError):
        await sql.queue.add_shards(A, [Shard(2, 4, 2, 40, 20), Shard(1, 6, 2, 60, 20)])
    record = await sql.queue.job(A)
    assert (record.shards, record.rows) == (2, 4)
    assert len([shard async for shard in sql.queue.shards(A)]) == 2


async def test_a_discarded_job_leaves_nothing_behind(sql, shards):
    await sql.queue.create_job(Job(A), {})
    await sql.queue.add_shards(A, shards([2, 2]))
    await sql.queue.discard_job(A)
    assert await sql.queue.job(A) is None
    await sql.add("a", shards([3]))
    assert [record.shard.count async for record in sql.queue.shards(A)] == [3]


async def test_rows_can_be_rejected_after_their_shards_were_added(sql, shards, node):
    await sql.queue.create_job(Job(A), {})
    await sql.queue.add_shards(A, [Shard(0, 0, 3, 0, 30, rejected=(1,)), *shards([3, 3], 1, 3)])
    await sql.queue.reject(A, [8, 2, 6])
    await sql.queue.reject(A, [2, 7])
    assert [record.shard.rejected async for record in sql.queue.shards(A)] == [(1, 2), (), (6, 7, 8)]
    assert (await sql.queue.job(A)).rejected == 5
    await sql.queue.activate(A)
    assert (await sql.queue.depth()).requests_ready == 4
    assert numbers(await sql.queue.lease(node, 4)) == [0, 1]


@pytest.mark.parametrize("index", [-1, 6])
async def test_a_row_of_no_shard_cannot_be_rejected(sql, shards, index):
    await sql.add("a", shards([3, 3]))
    with pytest.raises(QueueError, match=f"row {index} is in no shard"):
        await sql.queue.reject(A, [2, index])
    assert (await sql.queue.job(A)).rejected == 0


async def test_a_jobs_tally_is_the_sum_of_its_settled_shards(sql, shards, node, monkeypatch):
    monkeypatch.setattr(paging, "PAGE_SHARDS", 2)
    await sql.add("a", shards([4] * 6))
    tallies = [Tally(3, 1, 10, 20, {"timeout": 1}), Tally(4, 0, 1, 2), Tally(0, 4, 0, 0, {"poison": 4})]
    tallies += [Tally(2, 2, 5, 5, {"poison": 1, "timeout": 1}), Tally(4, 0, 1, 1)]
    for lease, tally in zip(await sql.queue.lease(node, 20), tallies, strict=True):
        await sql.queue.settle(node, lease, tally)
    assert await sql.queue.tally(A) == Tally(13, 7, 17, 28, {"poison": 5, "timeout": 2})


async def test_a_job_without_settled_shards_has_an_empty_tally(sql, shards):
    await sql.add("a", shards([4]))
    assert await sql.queue.tally(A) == Tally()


async def test_shards_are_listed_in_order_page_by_page(sql, shards, node, monkeypatch):
    monkeypatch.setattr(paging, "PAGE_SHARDS", 2)
    await sql.add("a", shards([1] * 5))
    [first] = await sql.queue.lease(node, 1)
    await sql.queue.settle(node, first, DONE)
    await sql.add("b", shards([1] * 3))

    async def listed(**filters):
        return [(record.shard.number, record.tally) async for record in sql.queue.shards(A, **filters)]

    assert await listed() == [(0, DONE), (1, None), (2, None), (3, None), (4, None)]
    assert await listed(after=2) == [(3, None), (4, None)]
    assert await listed(settled=True) == [(0, DONE)]
    assert await listed(settled=False) == [(1, None), (2, None), (3, None), (4, None)]


async def test_failed_shards_are_reopened_and_settled_anew(sql, shards, node):
    await sql.add("a", shards([2, 2, 2]))
    await settle_all(sql.queue, node, Tally(1, 1, errors={"timeout": 1}), Tally(2), Tally(0, 2))
    assert await sql.queue.reopen(A, only_failed=True) == [0, 2]
    assert await sql.queue.tally(A) == Tally(2)
    depth = await sql.queue.depth()
    assert (depth.shards_ready, depth.requests_ready, depth.requests_settled) == (2, 4, 2)
    leases = await sql.queue.lease(node, 4)
    assert [(lease.shard.number, lease.epoch) for lease in leases] == [(0, 2), (2, 2)]


async def test_all_shards_can_be_reopened(sql, shards, node):
    await sql.add("a", shards([2, 2, 2]))
    for lease in await sql.queue.lease(node, 4):
        await sql.queue.settle(node, lease, Tally(2))
    assert await sql.queue.reopen(A, only_failed=False) == [0, 1]
    assert (await sql.queue.depth()).shards_ready == 3


async def test_a_lease_from_before_a_reopening_settles_nothing(sql, shards, node):
    await sql.add("a", shards([2]))
    [lease] = await sql.queue.lease(node, 2)
    await sql.queue.settle(node, lease, Tally(0, 2))
    await sql.queue.reopen(A, only_failed=True)
    with pytest.raises(LeaseLostError):
        await sql.queue.settle(node, lease, Tally(0, 2))


async def test_what_a_dead_node_held_is_free_again_and_what_it_settled_is_its_own(sql, shards, node, other):
    await sql.add("a", shards([2, 2, 2, 2]))
    done, _ = await sql.queue.lease(node, 4)
    [theirs] = await sql.queue.lease(other, 2)
    await sql.queue.settle(node, done, Tally(1, 1, 10, 5, {"timeout": 1}))
    await sql.queue.settle(other, theirs, Tally(2))
    assert await sql.queue.tally(A, node) == Tally(1, 1, 10, 5, {"timeout": 1})
    assert await sql.queue.release_all(node) == 1
    assert [lease.shard.number for lease in await sql.queue.lease(other, 4)] == [1, 3]
    assert await sql.queue.tally(A, node) == Tally(1, 1, 10, 5, {"timeout": 1})


async def test_a_restarted_node_voids_the_leases_of_the_dead(sql, shards, node, other):
    await sql.add("a", shards([2, 2, 2]))
    await settle_all(sql.queue, node, *[DONE] * 3)
    await sql.add("b", shards([2, 2]))
    dead = await sql.queue.lease(node, 2) + await sql.queue.lease(other, 2)
    assert await sql.queue.release_all() == 2
    assert [lease.epoch for lease in await sql.queue.lease(node, 4)] == [2, 2]
    assert await sql.queue.renew(other, dead[1:]) == dead[1:]


async def test_more_leases_are_renewed_than_a_statement_may_name(sql, shards, node, monkeypatch):
    monkeypatch.setattr(leasing, "LEASES_PER_STATEMENT", 2)
    await sql.add("a", shards([1] * 5))
    leases = await sql.queue.lease(node, 5)
    sql.clock.advance(59)
    assert await sql.queue.renew(node, leases) == []
    sql.clock.advance(59)
    await sql.queue.release(node, leases)
    assert (await sql.queue.depth()).shards_ready == 5

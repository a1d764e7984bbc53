import pytest

from dispatcher.errors import QueueError
from dispatcher.model import Job, JobId, NodeId, Shard, Tally
from dispatcher.queue.keeping import FileRecord, FilesWanted
from dispatcher.queue.records import JobStatus
from dispatcher.queue.sql import open_queue

A, NODE = Job(JobId("a")), NodeId("n")


class Clock:
    time = 1000.0

    def now(self):
        return self.time

    def wall(self):
        return self.time

    async def sleep(self, seconds):
        self.time += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def queue(tmp_path, clock):
    async with open_queue(tmp_path / "queue.sqlite", clock, lease_s=60) as queue:
        await queue.create_job(A, {"stage": "old"})
        await queue.add_shards(A.id, [Shard(number, number * 4, 4, 0, 1) for number in range(3)])
        yield queue


async def test_a_job_moves_with_its_details(queue):
    await queue.keeping.move(A.id, JobStatus.ACTIVE, {"stage": "new"})
    record = await queue.job(A.id)
    assert (record.status, record.details) == (JobStatus.ACTIVE, {"stage": "new"})


async def test_a_job_that_is_not_there_does_not_move(queue):
    with pytest.raises(QueueError):
        await queue.keeping.move(JobId("b"), JobStatus.ACTIVE, {})


async def test_a_job_ends_with_its_files_or_not_at_all(queue):
    old, new = (FileRecord(name, "ann", name, "batch_output", 1, 1.0) for name in ("old", "new"))
    await queue.keeping.add_file(old)
    with pytest.raises(QueueError):
        await queue.keeping.conclude(JobId("b"), JobStatus.FINISHED, {}, made=[new], gone=["old"])
    assert await queue.keeping.file_ids() == {"old"}
    await queue.keeping.conclude(A.id, JobStatus.FINISHED, {"stage": "done"}, made=[new], gone=["old"])
    assert await queue.keeping.list_files(FilesWanted(None, 10), now=2.0) == [new]
    assert (await queue.job(A.id)).status is JobStatus.FINISHED


async def test_later_leases_have_the_changed_knobs(queue):
    await queue.activate(A.id)
    await queue.keeping.change(Job(A.id, priority=4, limit=2), 0.5)
    record = await queue.job(A.id)
    assert (record.priority, record.weight) == (4, 0.5)
    (lease,) = await queue.lease(NODE, 1)
    assert (lease.job.priority, lease.job.weight, lease.job.limit) == (4, 0.5, 2)


async def test_a_cleared_job_has_no_shards_and_can_be_given_them_again(queue):
    await queue.keeping.clear(A.id)
    record = await queue.job(A.id)
    assert (record.shards, record.rows) == (0, 0)
    await queue.add_shards(A.id, [Shard(0, 0, 4, 0, 1)])
    assert (await queue.job(A.id)).requests == 4


async def test_leases_count_until_they_are_settled_given_back_or_expired(queue, clock):
    await queue.activate(A.id)
    first, second, _ = await queue.lease(NODE, 12)
    assert await queue.keeping.leased(A.id) == 3
    await queue.settle(NODE, first, Tally(succeeded=4))
    await queue.release(NODE, [second])
    assert await queue.keeping.leased(A.id) == 1
    clock.time += 60
    assert await queue.keeping.leased(A.id) == 0


async def test_shards_that_have_been_leased_and_are_open_are_the_begun_ones(queue):
    keeping = queue.keeping
    await keeping.move(A.id, JobStatus.ACTIVE, {})
    assert await keeping.begun(A.id) == []
    first, second = await queue.lease(NODE, 8)
    await queue.settle(NODE, first, Tally(4))
    await queue.release(NODE, [second])
    assert [(each.shard, each.tally) for each in await keeping.begun(A.id)] == [(second.shard, None)]


async def test_of_a_reopened_shard_it_is_known_what_succeeded_until_it_is_leased(queue):
    keeping = queue.keeping
    await keeping.move(A.id, JobStatus.ACTIVE, {})
    (lease,) = await queue.lease(NODE, 4)
    await queue.settle(NODE, lease, Tally(3, 1, 30, 40, {"timeout": 1}))
    await queue.reopen(A.id, only_failed=True)
    (begun,) = await keeping.begun(A.id)
    assert (begun.shard, begun.tally) == (lease.shard, Tally(3, 0, 30, 40))
    (again,) = await queue.lease(NODE, 4)
    assert [(each.shard, each.tally) for each in await keeping.begun(A.id)] == [(again.shard, None)]

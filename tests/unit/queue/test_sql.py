"""What only the queue in a file does: life across processes, kills and cancellations."""

import asyncio
from itertools import chain

import pytest
from queue_jobs_contract import *  # noqa: F403  # the tests that every queue in a database has
from sqlalchemy import event

from dispatcher.model import Job, JobId, NodeId, Tally
from dispatcher.queue.sql import open_queue

A = JobId("a")


def numbers(leases):
    return [lease.shard.number for lease in leases]


async def test_everything_is_still_there_after_a_restart(tmp_path, clock, shards, node):
    async with open_queue(tmp_path / "queue.db", clock) as queue:
        await queue.create_job(Job(A), {"input": "x"})
        await queue.add_shards(A, shards([2, 2]))
        await queue.activate(A)
        [lease] = await queue.lease(node, 2)
        await queue.settle(node, lease, Tally(1, 1, 3, 4, {"timeout": 1}))
        [held] = await queue.lease(node, 2)
    async with open_queue(tmp_path / "queue.db", clock) as queue:
        assert await queue.tally(A) == Tally(1, 1, 3, 4, {"timeout": 1})
        assert await queue.renew(node, [held]) == []


@pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "SELECT jobs", "SELECT shards", "UPDATE shards"])
async def test_a_lease_that_is_cancelled_in_a_statement_is_whole_and_the_queue_goes_on(
    sql, shards, node, statement
):
    await sql.add("a", shards([2] * 10))
    task = asyncio.create_task(sql.queue.lease(node, 6))
    engine = sql.queue._database._writer.sync_engine

    @event.listens_for(engine, "before_cursor_execute")
    def cancel(_connection, _cursor, text, *_rest):
        if text.startswith(statement):
            task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    event.remove(engine, "before_cursor_execute", cancel)
    assert (await sql.queue.depth()).shards_leased == 3
    await sql.queue.release_all()
    assert numbers(await sql.queue.lease(node, 6)) == [0, 1, 2]


async def test_a_lease_that_is_cancelled_while_it_waits_for_its_turn_is_whole(sql, shards, node, other):
    await sql.add("a", shards([2] * 10))
    tasks = [asyncio.create_task(sql.queue.lease(node, 6)) for _ in range(3)]
    await asyncio.sleep(0)
    for task in tasks[1:]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [False, True, True]
    assert (await sql.queue.depth()).shards_leased == 9
    assert numbers(await sql.queue.lease(other, 6)) == [9]


async def test_two_queues_on_one_file_never_lease_the_same_shard(tmp_path, clock, shards):
    path = tmp_path / "queue.db"
    async with open_queue(path, clock) as first, open_queue(path, clock) as second:
        await first.create_job(Job(A), {})
        await first.add_shards(A, shards([1] * 60))
        await first.activate(A)
        taken = await asyncio.gather(
            *(
                _lease_everything(queue, queue_name)
                for queue, queue_name in ((first, "1"), (second, "2"), (first, "3"), (second, "4"))
            )
        )
    assert sorted(chain.from_iterable(taken)) == list(range(60))


async def test_two_nodes_with_threads_and_loops_of_their_own_never_lease_the_same_shard(
    tmp_path, clock, shards
):
    path = tmp_path / "queue.db"
    async with open_queue(path, clock) as queue:
        await queue.create_job(Job(A), {})
        await queue.add_shards(A, shards([1] * 60))
        await queue.activate(A)
    taken = await asyncio.gather(*(asyncio.to_thread(_node, path, clock, name) for name in "12"))
    assert sorted(chain.from_iterable(taken)) == list(range(60))


async def test_many_open_a_new_file_at_once(tmp_path, clock):
    async def open_and_count():
        async with open_queue(tmp_path / "queue.db", clock) as queue:
            return (await queue.depth()).drained

    assert await asyncio.gather(*(open_and_count() for _ in range(4))) == [True] * 4


async def _lease_everything(queue, name):
    taken = []
    while leases := await queue.lease(NodeId(name), 2):
        taken += numbers(leases)
    return taken


def _node(path, clock, name):
    async def run():
        async with open_queue(path, clock) as queue:
            return await _lease_everything(queue, name)

    return asyncio.run(run())

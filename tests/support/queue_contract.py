"""What every queue must do, whatever it is made of. A test module gives the fixture `world`."""

import asyncio
from dataclasses import replace
from itertools import chain

import pytest

from dispatcher.errors import LeaseLostError
from dispatcher.model import NodeId, Tally

DONE = Tally(succeeded=1)


def keys(leases):
    return [(lease.job.id, lease.shard.number) for lease in leases]


def numbers(leases):
    return [lease.shard.number for lease in leases]


async def test_shards_are_leased_in_order_until_their_requests_reach_what_is_wanted(world, shards, node):
    await world.add("a", shards([4, 4, 4, 4]))
    assert numbers(await world.queue.lease(node, 8)) == [0, 1]
    assert numbers(await world.queue.lease(node, 5)) == [2, 3]
    assert await world.queue.lease(node, 5) == []


async def test_a_lease_is_of_a_whole_shard_even_if_less_is_wanted(world, shards, node):
    await world.add("a", shards([4, 4]))
    assert numbers(await world.queue.lease(node, 1)) == [0]


async def test_nothing_is_leased_where_nothing_is_wanted(world, shards, node):
    await world.add("a", shards([4]))
    assert await world.queue.lease(node, 0) == []


async def test_a_lease_carries_the_shard_as_it_was_added(world, shards, node):
    added = [replace(shard, rejected=(shard.first_index,)) for shard in shards([3, 5])]
    await world.add("a", added)
    assert [lease.shard for lease in await world.queue.lease(node, 100)] == added


async def test_rejected_lines_are_no_requests(world, shards, node):
    await world.add("a", [replace(shard, rejected=(shard.first_index,)) for shard in shards([3, 3, 3])])
    assert numbers(await world.queue.lease(node, 4)) == [0, 1]
    assert (await world.queue.depth()).requests_leased == 4


async def test_a_shard_without_requests_is_leased_and_counts_as_one(world, shards, node):
    empty = [replace(shard, rejected=(shard.first_index,)) for shard in shards([1] * 5)]
    await world.add("a", empty)
    assert numbers(await world.queue.lease(node, 3)) == [0, 1, 2]


async def test_uneven_shards_are_taken_until_there_is_enough(world, shards, node):
    await world.add("a", shards([100, *[1] * 300, 100]))
    await world.queue.lease(node, 1)
    assert numbers(await world.queue.lease(node, 250)) == list(range(1, 251))


async def test_equal_jobs_take_turns(world, shards, node):
    await world.add("b", shards([4, 4, 4]))
    await world.add("a", shards([2, 2, 2, 2]))
    leases = await world.queue.lease(node, 14)
    assert keys(leases) == [("b", 0), ("a", 0), ("a", 1), ("b", 1), ("a", 2)]


async def test_what_a_job_has_leased_before_counts_for_its_share(world, shards, node, other):
    await world.add("a", shards([4] * 5))
    await world.queue.lease(other, 8)
    await world.add("b", shards([4] * 5))
    assert keys(await world.queue.lease(node, 12)) == [("b", 0), ("b", 1), ("a", 2)]


async def test_a_job_that_runs_dry_leaves_its_share_to_the_others(world, shards, node):
    await world.add("a", shards([4]))
    await world.add("b", shards([4] * 4))
    assert keys(await world.queue.lease(node, 16)) == [("a", 0), ("b", 0), ("b", 1), ("b", 2)]


async def test_a_lease_lasts_until_its_time_and_not_longer(world, shards, node, other):
    await world.add("a", shards([4]))
    await world.queue.lease(node, 4)
    world.clock.advance(59.9)
    assert await world.queue.lease(other, 4) == []
    world.clock.advance(0.1)
    assert numbers(await world.queue.lease(other, 4)) == [0]


async def test_an_expired_lease_is_taken_over_once_with_the_next_epoch(world, shards, node, other):
    await world.add("a", shards([4]))
    [first] = await world.queue.lease(node, 4)
    world.clock.advance(60)
    [second] = await world.queue.lease(other, 4)
    assert (first.epoch, second.epoch) == (1, 2)
    assert await world.queue.lease(node, 4) == []


async def test_a_lease_that_was_taken_over_settles_nothing(world, shards, node, other):
    await world.add("a", shards([4]))
    [lost] = await world.queue.lease(node, 4)
    world.clock.advance(60)
    [held] = await world.queue.lease(other, 4)
    with pytest.raises(LeaseLostError, match=r"shard 0 of job a: the lease of node node-a \(epoch 1\)"):
        await world.queue.settle(node, lost, DONE)
    await world.queue.settle(other, held, DONE)
    assert (await world.queue.depth()).drained


async def test_a_node_that_takes_over_from_itself_is_fenced_by_the_epoch(world, shards, node):
    await world.add("a", shards([4]))
    [lost] = await world.queue.lease(node, 4)
    world.clock.advance(60)
    [held] = await world.queue.lease(node, 4)
    with pytest.raises(LeaseLostError):
        await world.queue.settle(node, lost, DONE)
    await world.queue.settle(node, held, DONE)


async def test_another_node_cannot_settle_a_lease(world, shards, node, other):
    await world.add("a", shards([4]))
    [lease] = await world.queue.lease(node, 4)
    with pytest.raises(LeaseLostError):
        await world.queue.settle(other, lease, DONE)
    assert (await world.queue.depth()).shards_leased == 1


async def test_an_expired_lease_that_nobody_took_over_is_still_good(world, shards, node, other):
    await world.add("a", shards([4, 4]))
    first, second = await world.queue.lease(node, 8)
    world.clock.advance(100)
    assert (await world.queue.depth()).shards_ready == 2
    await world.queue.settle(node, first, DONE)
    assert await world.queue.renew(node, [second]) == []
    assert await world.queue.lease(other, 8) == []


async def test_an_expired_lease_that_is_renewed_and_released_is_leased_once(world, shards, node, other):
    await world.add("a", shards([4]))
    leases = await world.queue.lease(node, 4)
    world.clock.advance(60)
    await world.queue.depth()
    await world.queue.renew(node, leases)
    await world.queue.release(node, leases)
    assert numbers(await world.queue.lease(other, 100)) == [0]
    assert await world.queue.lease(other, 100) == []


async def test_renewing_prolongs_from_now(world, shards, node, other):
    await world.add("a", shards([4, 4]))
    leases = await world.queue.lease(node, 8)
    world.clock.advance(40)
    assert await world.queue.renew(node, leases) == []
    world.clock.advance(59.9)
    assert await world.queue.lease(other, 8) == []
    world.clock.advance(0.1)
    assert numbers(await world.queue.lease(other, 8)) == [0, 1]


async def test_renewing_tells_which_leases_are_lost_and_only_those(world, shards, node, other):
    await world.add("a", shards([4, 4, 4]))
    await world.add("b", shards([4]))
    leases = await world.queue.lease(node, 16)
    world.clock.advance(60)
    [taken] = await world.queue.lease(other, 1)
    lost = await world.queue.renew(node, leases)
    assert keys(lost) == keys([taken])
    assert await world.queue.lease(other, 16) == []


async def test_an_earlier_lease_of_a_shard_that_the_node_holds_again_is_lost(world, shards, node):
    await world.add("a", shards([4]))
    [earlier] = await world.queue.lease(node, 4)
    world.clock.advance(60)
    [held] = await world.queue.lease(node, 4)
    assert await world.queue.renew(node, [earlier, held]) == [earlier]


async def test_a_lost_lease_is_not_prolonged_for_its_new_holder(world, shards, node, other):
    await world.add("a", shards([4]))
    leases = await world.queue.lease(node, 4)
    world.clock.advance(60)
    await world.queue.lease(other, 4)
    world.clock.advance(50)
    await world.queue.renew(node, leases)
    world.clock.advance(10)
    assert numbers(await world.queue.lease(node, 4)) == [0]


async def test_a_lease_that_was_settled_meanwhile_is_not_lost(world, shards, node):
    await world.add("a", shards([4, 4]))
    leases = await world.queue.lease(node, 8)
    await world.queue.settle(node, leases[0], DONE)
    assert await world.queue.renew(node, leases) == []


async def test_renewing_nothing_is_no_fault(world, node):
    assert await world.queue.renew(node, []) == []


async def test_released_shards_are_ready_at_once_with_the_next_epoch(world, shards, node, other):
    await world.add("a", shards([4, 4]))
    leases = await world.queue.lease(node, 8)
    await world.queue.release(node, leases)
    assert [lease.epoch for lease in await world.queue.lease(other, 8)] == [2, 2]


async def test_a_released_lease_settles_nothing(world, shards, node):
    await world.add("a", shards([4]))
    leases = await world.queue.lease(node, 4)
    await world.queue.release(node, leases)
    with pytest.raises(LeaseLostError):
        await world.queue.settle(node, leases[0], DONE)
    assert await world.queue.renew(node, leases) == leases


async def test_releasing_a_lost_lease_leaves_the_new_holder_alone(world, shards, node, other):
    await world.add("a", shards([4]))
    lost = await world.queue.lease(node, 4)
    world.clock.advance(60)
    held = await world.queue.lease(other, 4)
    await world.queue.release(node, lost)
    assert await world.queue.renew(other, held) == []


async def test_releasing_a_settled_shard_changes_nothing(world, shards, node):
    await world.add("a", shards([4]))
    leases = await world.queue.lease(node, 4)
    await world.queue.settle(node, leases[0], DONE)
    await world.queue.release(node, leases)
    assert (await world.queue.depth()).drained
    await world.queue.settle(node, leases[0], DONE)


async def test_settling_twice_by_the_same_lease_counts_once(world, shards, node):
    await world.add("a", shards([4, 4]))
    [lease] = await world.queue.lease(node, 4)
    await world.queue.settle(node, lease, DONE)
    await world.queue.settle(node, lease, DONE)
    depth = await world.queue.depth()
    assert (depth.shards_settled, depth.requests_settled, depth.requests_ready) == (1, 4, 4)


async def test_a_settled_shard_is_nobody_elses_to_settle(world, shards, node, other):
    await world.add("a", shards([4]))
    [lease] = await world.queue.lease(node, 4)
    await world.queue.settle(node, lease, DONE)
    with pytest.raises(LeaseLostError):
        await world.queue.settle(other, lease, DONE)
    with pytest.raises(LeaseLostError):
        await world.queue.settle(node, replace(lease, epoch=2), DONE)


async def test_a_settled_shard_never_comes_back(world, shards, node):
    await world.add("a", shards([4]))
    [lease] = await world.queue.lease(node, 4)
    await world.queue.settle(node, lease, DONE)
    world.clock.advance(1000)
    assert await world.queue.lease(node, 4) == []


async def test_the_depth_tells_ready_leased_and_settled_apart(world, shards, node):
    await world.add("a", shards([1, 2, 4]))
    await world.add("b", shards([8]))
    leases = await world.queue.lease(node, 1)
    leases += await world.queue.lease(node, 1)
    await world.queue.settle(node, leases[0], DONE)
    depth = await world.queue.depth()
    assert (depth.shards_ready, depth.shards_leased, depth.shards_settled) == (2, 1, 1)
    assert (depth.requests_ready, depth.requests_leased, depth.requests_settled) == (6, 8, 1)
    assert not depth.drained


async def test_an_empty_queue_is_drained(world):
    assert (await world.queue.depth()).drained


async def test_many_tasks_never_get_the_same_shard(world, shards):
    await world.add("a", shards([4] * 40))
    await world.add("b", shards([2] * 40))

    async def work(name):
        taken = []
        while leases := await world.queue.lease(NodeId(name), 8):
            taken += keys(leases)
        return taken

    taken = list(chain.from_iterable(await asyncio.gather(*(work(f"node-{i}") for i in range(8)))))
    assert len(taken) == len(set(taken)) == 80


async def test_a_waiting_node_is_woken_by_new_work(world, shards):
    waiter = asyncio.create_task(world.queue.wait(3600))
    await asyncio.sleep(0)
    await world.add("a", shards([4]))
    await asyncio.wait_for(waiter, 5)


async def test_a_waiting_node_is_woken_by_released_work(world, shards, node):
    await world.add("a", shards([4]))
    leases = await world.queue.lease(node, 4)
    await world.queue.wait(3600)  # takes the ring of the adding
    waiter = asyncio.create_task(world.queue.wait(3600))
    await asyncio.sleep(0)
    assert not waiter.done()
    await world.queue.release(node, leases)
    await asyncio.wait_for(waiter, 5)


async def test_work_that_came_before_the_waiting_is_not_missed(world, shards):
    await world.add("a", shards([4]))
    await asyncio.wait_for(world.queue.wait(3600), 5)


async def test_a_wait_ends_with_its_time(world):
    waiter = asyncio.create_task(world.queue.wait(2))
    for _ in range(5):
        await asyncio.sleep(0)
    world.clock.advance(1.9)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiter.done()
    world.clock.advance(0.1)
    await asyncio.wait_for(waiter, 5)

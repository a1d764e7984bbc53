"""Journals that outlive their node. Nodes here are recorders with directories of their own over one store."""

import asyncio
import contextlib
from dataclasses import replace
from random import Random

import pytest
from structlog.testing import capture_logs

from dispatcher.errors import LeaseLostError, UnavailableError
from dispatcher.results.checkpointed import CheckpointedRecorder
from dispatcher.results.checkpoints import Checkpoints, checkpoint_of
from dispatcher.results.copies import Copies
from dispatcher.results.journal import parse_journal
from dispatcher.results.recorder import JournalRecorder
from dispatcher.storage.folder import Folder

CHECKPOINT_S = 30


class HandClock:
    """Time that the test moves, by whole seconds. The recorder's own rounds of 10 ms take none."""

    def __init__(self):
        self.time, self._sleepers = 0.0, []

    def now(self):
        return self.time

    async def sleep(self, seconds):
        if seconds < 1:
            await asyncio.sleep(0)
            return
        sleeper = (self.time + seconds, asyncio.Event())
        self._sleepers.append(sleeper)
        try:
            await sleeper[1].wait()
        finally:
            self._sleepers.remove(sleeper)

    async def pass_by(self, seconds, *, leaving=0):
        """Let time pass, each second until all that it woke sleep again but those that are `leaving`."""
        for _ in range(seconds):
            asleep = len(self._sleepers)
            self.time += 1
            woken = [event for until, event in self._sleepers if until <= self.time]
            for event in woken:
                event.set()
            await self._until(lambda woken=woken: not any(event in self._events() for event in woken))
            await self._until(lambda asleep=asleep: len(self._sleepers) >= asleep - leaving)

    async def asleep(self, count):
        """Wait until so many sleep."""
        await self._until(lambda: len(self._sleepers) == count)

    def _events(self):
        return [event for _, event in self._sleepers]

    async def _until(self, condition):
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110  # threads take what they take
                await asyncio.sleep(0)


class Store(Folder):
    """A store that counts what is put, and refuses where it is told to."""

    def __init__(self, root):
        super().__init__(root)
        root.mkdir()
        self.puts, self.refuses = [], False

    async def find(self, key):
        if self.refuses:
            raise UnavailableError(f"{key}: 503")
        return await super().find(key)

    async def put(self, key, content, replaces=None):
        if self.refuses:
            raise UnavailableError(f"{key}: 503")
        self.puts.append(key)
        return await super().put(key, content, replaces)


class World:
    def __init__(self, tmp_path, samples):
        self.tmp_path, self.clock, self.samples = tmp_path, HandClock(), samples
        self.store = Store(tmp_path / "store")
        self.left_s = 60.0

    @contextlib.asynccontextmanager
    async def node(self, name):
        copies = Copies(self.tmp_path / name)
        inner = JournalRecorder(self.tmp_path / name, self.clock, sync_s=0, path_of=copies.path_of)
        left_s = lambda _lease: self.left_s  # noqa: E731
        async with CheckpointedRecorder(
            inner, self.store, copies, self.clock, Random(1), left_s=left_s, checkpoint_s=CHECKPOINT_S
        ) as recorder:
            yield recorder

    def lease(self, epoch):
        return replace(self.samples.lease(), epoch=epoch)

    async def open(self, recorder, lease):
        return await recorder.open(lease, self.samples.requests(lease))

    async def record(self, recorder, lease, *indexes):
        for index in indexes:
            recorder.append(lease, self.samples.success(index))
        left = len(indexes)
        async with asyncio.timeout(5):
            while left > 0:
                left -= sum(note.count for note in await recorder.recorded())

    async def keys(self):
        return sorted([stored.key async for stored in self.store.list("journals")])

    async def outcomes(self, epoch=None):
        checkpoints, job, shard = Checkpoints(self.store), self.samples.job, self.samples.shard()
        if epoch is None:
            data = (await checkpoints.latest(job.id, shard))[1]
        else:
            data = await checkpoints.settled(job.id, shard.number, epoch)
        return sorted(parse_journal(data, shard).outcomes)


@pytest.fixture
def world(tmp_path, samples):
    return World(tmp_path, samples)


async def test_a_journal_that_grows_is_put_within_the_interval_and_one_that_rests_is_left_alone(
    world,
):
    async with world.node("a") as recorder:
        lease = world.lease(1)
        await world.open(recorder, lease)
        await world.record(recorder, lease, 0, 1)
        await world.clock.pass_by(CHECKPOINT_S + 1)
        assert await world.outcomes() == [0, 1]
        puts = len(world.store.puts)
        await world.clock.pass_by(3 * CHECKPOINT_S)
        assert len(world.store.puts) == puts


async def test_another_node_goes_on_from_the_last_checkpoint(world):
    async with world.node("a") as first, world.node("b") as second:
        await world.open(first, world.lease(1))
        await world.record(first, world.lease(1), 0, 1)
        await world.clock.pass_by(CHECKPOINT_S + 1)
        await world.record(first, world.lease(1), 2)
        replay = await world.open(second, world.lease(2))
        assert replay.finished == {0, 1}
        await world.record(second, world.lease(2), 2, 3)
        await second.close(world.lease(2))
    assert await world.outcomes(epoch=2) == [0, 1, 2, 3]


async def test_a_node_that_comes_back_goes_on_from_its_own_longer_copy(world):
    async with world.node("a") as recorder:
        await world.open(recorder, world.lease(1))
        await world.record(recorder, world.lease(1), 0)
        await world.clock.pass_by(CHECKPOINT_S + 1)
        await world.record(recorder, world.lease(1), 1, 2)
    async with world.node("a") as recorder:
        assert (await world.open(recorder, world.lease(2))).finished == {0, 1, 2}


async def test_a_copy_that_another_node_has_gone_on_from_counts_no_more(world):
    async with world.node("a") as first, world.node("b") as second:
        await world.open(first, world.lease(1))
        await world.record(first, world.lease(1), 0, 1, 2)
        await world.open(second, world.lease(2))
        await world.record(second, world.lease(2), 3)
        await second.close(world.lease(2))
    async with world.node("a") as recorder:
        assert (await world.open(recorder, world.lease(3))).finished == {3}


async def test_a_closed_shard_is_in_the_store_under_its_own_epoch_and_nowhere_else(world, tmp_path):
    async with world.node("a") as recorder:
        await world.open(recorder, world.lease(1))
        await world.record(recorder, world.lease(1), 0, 1)
        await recorder.close(world.lease(1))
        await world.open(recorder, world.lease(2))
        await world.record(recorder, world.lease(2), 2, 3)
        await recorder.close(world.lease(2))
    assert await world.outcomes(epoch=2) == [0, 1, 2, 3]
    assert await world.keys() == ["journals/batch_7/000/000000/000002"]
    assert not list((tmp_path / "a").rglob("*.journal"))


async def test_a_shard_that_was_finished_before_is_under_the_epoch_that_settles_it(world):
    async with world.node("a") as recorder:
        for epoch in (1, 2):
            await world.open(recorder, world.lease(epoch))
            await world.record(recorder, world.lease(epoch), *(range(4) if epoch == 1 else ()))
            await recorder.close(world.lease(epoch))
    assert await world.outcomes(epoch=2) == [0, 1, 2, 3]


async def test_of_two_nodes_with_one_lease_the_second_is_refused(world):
    async with world.node("a") as first, world.node("b") as second:
        for recorder, index in ((first, 0), (second, 1)):
            await world.open(recorder, world.lease(1))
            await world.record(recorder, world.lease(1), index)
        await first.close(world.lease(1))
        with pytest.raises(LeaseLostError, match="another node has written"):
            await second.close(world.lease(1))
    assert await world.outcomes(epoch=1) == [0]


async def test_a_lease_is_not_opened_once_a_later_one_has_recorded(world):
    async with world.node("a") as first, world.node("b") as second:
        await world.open(first, world.lease(3))
        await world.record(first, world.lease(3), 0)
        await first.close(world.lease(3))
        with pytest.raises(LeaseLostError, match="epoch 3"):
            await world.open(second, world.lease(2))


async def test_a_node_whose_lease_is_over_by_its_own_clock_writes_nothing(world):
    async with world.node("a") as recorder:
        await world.open(recorder, world.lease(1))
        await world.record(recorder, world.lease(1), 0)
        world.left_s = 0.0
        await world.clock.pass_by(2 * CHECKPOINT_S)
        world.left_s = float("-inf")
        with pytest.raises(LeaseLostError, match="by this node's clock"):
            await recorder.close(world.lease(1))
    assert world.store.puts == []


async def test_a_lease_that_is_prolonged_after_it_was_over_is_checkpointed_again(world):
    """The queue was away for all nodes: nobody has taken the shard over meanwhile."""
    async with world.node("a") as recorder:
        await world.open(recorder, world.lease(1))
        await world.record(recorder, world.lease(1), 0)
        world.left_s = 0.0
        await world.clock.pass_by(2 * CHECKPOINT_S)
        assert world.store.puts == []
        world.left_s = 60.0
        await world.clock.pass_by(2)
        assert await world.outcomes() == [0]
        await world.record(recorder, world.lease(1), 1)
        await world.clock.pass_by(CHECKPOINT_S + 1)
        assert await world.outcomes() == [0, 1]


async def test_a_store_that_refuses_is_an_obstacle_that_closing_waits_out(world):
    async with world.node("a") as recorder:
        await world.open(recorder, world.lease(1))
        await world.record(recorder, world.lease(1), 0)
        world.store.refuses = True
        closing = asyncio.create_task(recorder.close(world.lease(1)))
        await world.clock.asleep(2)
        await world.clock.pass_by(20)
        assert "503" in recorder.obstacle
        assert not closing.done()
        world.store.refuses = False
        await world.clock.pass_by(1, leaving=1)
        await closing
        assert recorder.obstacle is None
    assert await world.outcomes(epoch=1) == [0]


async def test_an_obstacle_ends_with_the_outage_though_nothing_is_left_to_put(world):
    async with world.node("a") as recorder:
        await world.open(recorder, world.lease(1))
        await world.record(recorder, world.lease(1), 0)
        world.store.refuses = True
        with capture_logs() as logs:
            await world.clock.pass_by(CHECKPOINT_S + 1)
            world.left_s = float("-inf")
            with pytest.raises(LeaseLostError):
                await recorder.close(world.lease(1))
            await world.clock.pass_by(5)
            assert "503" in recorder.obstacle
            world.store.refuses = False
            await world.clock.pass_by(1)
        assert recorder.obstacle is None
    assert [entry["event"] for entry in logs] == ["checkpoint_failed"]


@pytest.mark.parametrize("prolonged", [True, False])
async def test_a_shard_that_is_leased_anew_while_it_is_being_closed_is_the_later_leases(world, prolonged):
    async with world.node("a") as recorder:
        await world.open(recorder, world.lease(1))
        await world.record(recorder, world.lease(1), 0)
        world.store.refuses = True
        closing = asyncio.create_task(recorder.close(world.lease(1)))
        await world.clock.asleep(2)
        world.store.refuses, world.left_s = False, 0.0  # the old lease is over, or it seems so
        await recorder.close(world.lease(2))
        world.left_s = 60.0 if prolonged else 0.0
        assert (await world.open(recorder, world.lease(2))).finished == {0}
        await world.clock.pass_by(1, leaving=1)
        with pytest.raises(LeaseLostError, match="leased anew"):
            await closing
        world.left_s = 60.0
        await world.record(recorder, world.lease(2), 1)
        await recorder.close(world.lease(2))
    assert await world.outcomes(epoch=2) == [0, 1]


async def test_a_journal_that_is_removed_under_the_node_is_never_put_as_an_empty_one(world):
    async with world.node("a") as recorder:
        await world.open(recorder, world.lease(1))
        await world.record(recorder, world.lease(1), 0)
        await world.clock.pass_by(CHECKPOINT_S + 1)
        await world.record(recorder, world.lease(1), 1)
        Copies(world.tmp_path / "a").path_of(world.lease(1)).unlink()
        await world.clock.pass_by(CHECKPOINT_S + 1)
        with pytest.raises(LeaseLostError, match="was removed"):
            await recorder.close(world.lease(1))
    assert await world.outcomes(epoch=1) == [0]


async def test_a_put_whose_answer_was_lost_does_not_count_as_anothers(world):
    async with world.node("a") as recorder:
        await world.open(recorder, world.lease(1))
        await world.record(recorder, world.lease(1), 0)
        put = world.store.put

        async def unanswered(key, content, replaces=None):
            await put(key, content, replaces)
            world.store.put = put
            raise UnavailableError(f"{key}: timed out")

        world.store.put = unanswered
        await world.clock.pass_by(CHECKPOINT_S + 1)
        await world.record(recorder, world.lease(1), 1)
        await recorder.close(world.lease(1))
    assert await world.outcomes(epoch=1) == [0, 1]


async def test_failures_that_are_taken_back_do_not_come_back_from_a_nodes_own_copy(world):
    lease = world.lease(1)
    checkpoints = Checkpoints(world.store)
    async with world.node("a") as recorder:
        await world.open(recorder, lease)
        await world.record(recorder, lease, 0)
        await world.clock.pass_by(CHECKPOINT_S + 1)
        recorder.append(lease, world.samples.failure(1))
        await world.record(recorder, lease, 2)
    for _ in range(2):  # again, after a kill
        await checkpoints.take_back_failures(lease.job, lease.shard, 1)
    assert await world.outcomes() == [0]
    async with world.node("a") as recorder:
        assert (await world.open(recorder, world.lease(2))).finished == {0}


async def test_the_earlier_lease_of_a_shard_that_was_lost_is_let_go_without_a_word(world):
    async with world.node("a") as recorder:
        await world.open(recorder, world.lease(1))
        await world.record(recorder, world.lease(1), 0)
        await recorder.close(world.lease(2))
        assert (await world.open(recorder, world.lease(2))).finished == {0}
    assert world.store.puts == []


def test_keys_are_read_as_they_are_written():
    found = checkpoint_of("journals/batch_7/001/001234/000007.reopened")
    assert (found.job, found.number, found.epoch, found.reopened) == ("batch_7", 1234, 7, True)
    assert checkpoint_of("journals/batch_7/001/001234/000007").reopened is False
    assert checkpoint_of("files/file-1") is None

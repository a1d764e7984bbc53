"""What every recorder does alike."""

import asyncio
import contextlib
from random import Random

import pytest

from dispatcher.errors import StateError
from dispatcher.model import Grudge, Job, JobId
from dispatcher.ports import Replay
from dispatcher.results.checkpointed import CheckpointedRecorder
from dispatcher.results.copies import Copies
from dispatcher.results.memory import MemoryRecorder
from dispatcher.results.recorder import JournalRecorder
from dispatcher.storage.folder import Folder


@contextlib.asynccontextmanager
async def drained_memory_recorder():
    """A memory recorder whose consumer takes everything as it comes."""
    recorder = MemoryRecorder(capacity=100)

    async def consume():
        async for _ in recorder.outcomes():
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(consume())
        yield recorder
        recorder.end()


def checkpointed_recorder(tmp_path, clock):
    copies = Copies(tmp_path / "copies")
    inner = JournalRecorder(tmp_path, clock, path_of=copies.path_of)
    store = Folder(tmp_path / "store")
    return CheckpointedRecorder(inner, store, copies, clock, Random(1), left_s=lambda _: 60.0)


@pytest.fixture(params=["journal", "checkpointed", "memory"])
async def recorder(request, tmp_path, clock):
    (tmp_path / "store").mkdir()
    made = {
        "journal": lambda: JournalRecorder(tmp_path, clock),
        "checkpointed": lambda: checkpointed_recorder(tmp_path, clock),
        "memory": drained_memory_recorder,
    }
    async with made[request.param]() as opened:
        yield opened


async def recorded_counts(recorder, total):
    """Outcomes announced by lease, until there are `total`."""
    counts = {}
    async with asyncio.timeout(5):
        while sum(counts.values()) < total:
            for note in await recorder.recorded():
                counts[note.lease] = counts.get(note.lease, 0) + note.count
    return counts


async def test_a_new_shard_has_no_outcomes(recorder, samples):
    lease = samples.lease()
    assert await recorder.open(lease, samples.requests(lease)) == Replay()


async def test_every_appended_outcome_is_announced_once(recorder, samples):
    leases = [samples.lease(number) for number in range(3)]
    for lease in leases:
        await recorder.open(lease, samples.requests(lease))
    for lease in leases:
        for index in range(lease.shard.first_index, lease.shard.first_index + 1 + lease.shard.number):
            recorder.append(lease, samples.success(index))
    assert await recorded_counts(recorder, 6) == dict(zip(leases, (1, 2, 3), strict=True))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(recorder.recorded(), 0.03)


async def test_shards_of_two_jobs_do_not_mix(recorder, samples):
    leases = [samples.lease(), samples.lease(job=Job(JobId("other")))]
    for lease in leases:
        await recorder.open(lease, samples.requests(lease))
        recorder.append(lease, samples.success(0))
    assert await recorded_counts(recorder, 2) == dict.fromkeys(leases, 1)
    for lease in leases:
        await recorder.close(lease)


async def test_a_reader_that_gives_up_waiting_loses_nothing(recorder, samples):
    lease = samples.lease()
    await recorder.open(lease, samples.requests(lease))
    reader = asyncio.create_task(recorder.recorded())
    await asyncio.sleep(0)
    recorder.append(lease, samples.success(0))
    reader.cancel()
    assert await recorded_counts(recorder, 1) == {lease: 1}


async def test_closing_a_shard_has_announced_all_of_it(recorder, samples):
    lease = samples.lease()
    await recorder.open(lease, samples.requests(lease))
    for index in range(4):
        recorder.append(lease, samples.success(index))
    await recorder.close(lease)
    assert sum(note.count for note in await recorder.recorded()) == 4


async def test_closing_again_or_without_opening_does_nothing(recorder, samples):
    lease = samples.lease()
    await recorder.close(lease)
    await recorder.open(lease, samples.requests(lease))
    await asyncio.gather(recorder.close(lease), recorder.close(lease))
    await recorder.close(lease)


async def test_a_shard_is_open_once_at_a_time(recorder, samples):
    lease = samples.lease()
    await recorder.open(lease, samples.requests(lease))
    with pytest.raises(StateError, match="shard 0 of job batch_7 is being recorded already"):
        await recorder.open(lease, samples.requests(lease))
    await recorder.close(lease)
    await recorder.open(lease, samples.requests(lease))


async def test_there_is_no_obstacle_in_good_times(recorder, samples):
    lease = samples.lease()
    await recorder.open(lease, samples.requests(lease))
    recorder.append(lease, samples.success(0))
    assert recorder.obstacle is None


async def test_what_is_remembered_is_not_announced_as_an_outcome(recorder, samples):
    lease = samples.lease()
    await recorder.open(lease, samples.requests(lease))
    recorder.remember(lease, 0, Grudge(1, 0.5))
    recorder.append(lease, samples.success(1))
    assert await recorded_counts(recorder, 1) == {lease: 1}
    recorder.remember(lease, 2, Grudge(1, 0.5))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(recorder.recorded(), 0.03)
    await recorder.close(lease)

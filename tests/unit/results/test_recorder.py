"""The journal recorder: when it writes and syncs, and what it does while the disk refuses."""

import asyncio
import contextlib
import errno
import itertools

import pytest
from structlog.testing import capture_logs

from dispatcher.errors import StorageError
from dispatcher.model import Grudge, Tally
from dispatcher.ports import Replay
from dispatcher.results.journal import encode_record, journal_path, parse_journal, read_journal
from dispatcher.results.recorder import JournalRecorder


@pytest.fixture
async def start(tmp_path, clock, disk, samples):
    """Starts a recorder on the scripted disk, with one open shard."""
    async with contextlib.AsyncExitStack() as stack:

        async def started(**settings):
            recorder = JournalRecorder(tmp_path, clock, disk=disk, **settings)
            await stack.enter_async_context(recorder)
            lease = samples.lease()
            await recorder.open(lease, samples.requests(lease))
            return recorder, lease

        yield started


def path_of(tmp_path, lease):
    return journal_path(tmp_path, lease.job, lease.shard)


async def announced(recorder):
    async with asyncio.timeout(5):
        return sum(note.count for note in await recorder.recorded())


async def test_a_first_outcome_is_durable_at_once_and_later_ones_every_sync_s(start, clock, disk, samples):
    recorder, lease = await start(sync_s=1.0)
    recorder.append(lease, samples.success(0))
    assert await announced(recorder) == 1
    assert clock.time <= 0.01
    recorder.append(lease, samples.success(1))
    recorder.append(lease, samples.success(2))
    assert await announced(recorder) == 2
    assert disk.times_of("sync") == pytest.approx([0.0, 1.0], abs=0.02)


async def test_what_is_appended_reaches_the_system_long_before_its_sync(
    start, tmp_path, clock, samples, eventually
):
    recorder, lease = await start(sync_s=1e6)
    recorder.append(lease, samples.success(0))
    assert await announced(recorder) == 1
    recorder.append(lease, samples.success(1))
    appended_at = clock.time
    await eventually(lambda: len(read_journal(path_of(tmp_path, lease), lease.shard).records) == 2)
    assert clock.time - appended_at < 1e6


async def test_writes_are_at_least_10_ms_apart(start, clock, disk, samples, eventually):
    recorder, lease = await start()
    for index in range(4):
        recorder.append(lease, samples.success(index))
        await eventually(lambda wanted=index: len(disk.times_of("append")) > wanted)
    times = disk.times_of("append")
    assert all(later - earlier > 0.0099 for earlier, later in itertools.pairwise(times))


async def test_outcomes_appended_together_are_written_together(start, disk, samples):
    recorder, lease = await start()
    for index in range(4):
        recorder.append(lease, samples.success(index))
    await announced(recorder)
    assert len(disk.times_of("append")) == 1


async def test_an_idle_recorder_does_nothing(start, clock, disk, samples):
    recorder, lease = await start()
    recorder.append(lease, samples.success(0))
    await announced(recorder)
    await asyncio.sleep(0.005)
    calls, time = len(disk.calls), clock.time
    await asyncio.sleep(0.02)
    assert (len(disk.calls), clock.time) == (calls, time)


async def test_an_earlier_runs_outcomes_are_found_and_the_journal_repaired(tmp_path, clock, samples):
    lease = samples.lease()
    path = path_of(tmp_path, lease)
    path.parent.mkdir(parents=True)
    kept = [encode_record(outcome, lease.job) for outcome in (samples.success(3), samples.failure(1))]
    path.write_bytes(b"".join(kept) + b"torn")
    async with JournalRecorder(tmp_path, clock) as recorder:
        replay = await recorder.open(lease, samples.requests(lease))
        assert replay == Replay(frozenset({1, 3}), Tally(1, 1, 10, 3, {"timeout": 1}))
        assert path.read_bytes() == b"".join(kept)
        recorder.append(lease, samples.success(0))
    assert path.read_bytes() == b"".join([*kept, encode_record(samples.success(0), lease.job)])


async def test_outcomes_of_other_requests_are_not_found(tmp_path, clock, samples):
    lease = samples.lease()
    path = path_of(tmp_path, lease)
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_record(samples.success(0), lease.job))
    async with JournalRecorder(tmp_path, clock) as recorder:
        replay = await recorder.open(lease, samples.requests(lease)[1:])
    assert replay == Replay()


async def test_closing_syncs_one_shard_at_once_and_gives_its_descriptor_back(start, clock, disk, samples):
    recorder, lease = await start(sync_s=1000.0)
    other = samples.lease(1)
    await recorder.open(other, samples.requests(other))
    recorder.append(lease, samples.success(0))
    await announced(recorder)
    recorder.append(lease, samples.success(1))
    recorder.append(other, samples.success(4))
    await recorder.close(lease)
    assert await announced(recorder) == 1
    assert clock.time < 1
    assert len(disk._paths) == 1


async def test_a_close_that_is_given_up_still_happens(start, disk, samples, eventually):
    recorder, lease = await start()
    recorder.append(lease, samples.success(0))
    closing = asyncio.create_task(recorder.close(lease))
    await asyncio.sleep(0)
    closing.cancel()
    await eventually(lambda: not recorder._shards)
    assert not disk._paths


async def test_a_full_disk_is_an_obstacle_until_there_is_space_again(
    start, tmp_path, clock, disk, samples, eventually
):
    recorder, lease = await start()
    disk.fail("append", errno.ENOSPC, times=3, written=50)
    clock.hold()
    recorder.append(lease, samples.success(0))
    await eventually(lambda: recorder.obstacle)
    assert recorder.obstacle == f"cannot write {path_of(tmp_path, lease)}: No space left on device"
    recorder.append(lease, samples.success(1))
    clock.release()
    assert await announced(recorder) == 2
    assert recorder.obstacle is None
    assert disk.times_of("append") == pytest.approx([0.0, 1.0, 2.0, 3.0])
    contents = read_journal(path_of(tmp_path, lease), lease.shard)
    assert contents.clean
    assert list(contents.outcomes) == [0, 1]


async def test_a_full_disk_is_logged_when_it_is_met_and_when_there_is_space_again(start, disk, samples):
    with capture_logs() as logs:
        recorder, lease = await start()
        disk.fail("append", errno.ENOSPC, times=3)
        recorder.append(lease, samples.success(0))
        assert await announced(recorder) == 1
    assert [entry["event"] for entry in logs] == ["recording_failed", "recording_again"]
    assert logs[0]["error"].endswith("No space left on device")


@pytest.mark.parametrize("operation", ["open", "append", "sync", "sync_folder"])
async def test_one_file_that_fails_does_not_hold_up_the_others(start, disk, samples, operation):
    recorder, lease = await start()
    other = samples.lease(1000)
    await recorder.open(other, samples.requests(other))
    disk.fail(operation, errno.EIO, times=1000, name="000" if operation == "sync_folder" else "000000.")
    recorder.append(lease, samples.success(0))
    recorder.append(other, samples.success(4000))
    assert [note.lease for note in await recorder.recorded()] == [other]
    assert recorder.obstacle
    disk.relent()
    assert [note.lease for note in await recorder.recorded()] == [lease]


async def test_what_was_announced_survives_a_power_cut_whatever_fails_before_it(start, disk, samples):
    recorder, lease = await start(sync_s=0.02)
    other = samples.lease(1)
    await recorder.open(other, samples.requests(other))
    for fault in ("sync", "append", "sync", "sync_folder"):
        disk.fail(fault, errno.EIO, written=30)
    total = 0
    for index in range(4):
        recorder.append(lease, samples.success(index))
        recorder.append(other, samples.success(4 + index))
        total += await announced(recorder)
        assert sum(data.count(b"\n") for data in disk.power_cut().values()) >= total
    while total < 8:
        total += await announced(recorder)
    for path, data in disk.power_cut().items():
        assert data == path.read_bytes()
        assert data.count(b"\n") == 4
    assert disk.faults_left == 0


async def test_few_descriptors_serve_many_shards(start, tmp_path, disk, samples):
    recorder, _ = await start(files_max=3)
    leases = [samples.lease(number) for number in range(1, 11)]
    for lease in leases:
        await recorder.open(lease, samples.requests(lease))
    for offset in range(4):
        for lease in leases:
            recorder.append(lease, samples.success(lease.shard.first_index + offset))
        await asyncio.sleep(0.001)
    for lease in leases:
        await recorder.close(lease)
        assert len(read_journal(path_of(tmp_path, lease), lease.shard).outcomes) == 4
    assert disk.open_most == 3


async def test_slow_syncs_do_not_hold_up_writing(start, clock, disk, samples):
    recorder, lease = await start()
    leases = [lease, *(samples.lease(number) for number in range(1, 6))]
    for other in leases[1:]:
        await recorder.open(other, samples.requests(other))
    disk.sync_takes_s = 0.3
    for each in leases:
        recorder.append(each, samples.success(each.shard.first_index))
    assert await announced(recorder) == 1
    recorder.append(lease, samples.success(1))
    for _ in range(6):
        assert await announced(recorder) == 1
    operations = [operation for operation, _ in disk.calls if operation in ("append", "sync")]
    assert operations[:7] == ["append"] * 6 + ["sync"]
    assert operations.index("append", 6) <= 8


async def test_the_syncs_durations_are_told(start, samples):
    seconds = []
    recorder, lease = await start(on_sync=seconds.append)
    recorder.append(lease, samples.success(0))
    await announced(recorder)
    assert seconds == [0.0]


async def test_leaving_makes_everything_durable(tmp_path, clock, disk, samples):
    lease = samples.lease()
    async with JournalRecorder(tmp_path, clock, sync_s=1e6, disk=disk) as recorder:
        await recorder.open(lease, samples.requests(lease))
        for index in range(4):
            recorder.append(lease, samples.success(index))
            await asyncio.sleep(0)
    assert disk.power_cut()[path_of(tmp_path, lease)].count(b"\n") == 4
    assert not disk._paths


async def test_leaving_by_cancellation_makes_everything_durable(tmp_path, clock, disk, samples):
    lease = samples.lease()

    async def record():
        async with JournalRecorder(tmp_path, clock, sync_s=1e6, disk=disk) as recorder:
            await recorder.open(lease, samples.requests(lease))
            recorder.append(lease, samples.success(0))
            await asyncio.Event().wait()

    recording = asyncio.create_task(record())
    await asyncio.sleep(0.01)
    recording.cancel()
    with pytest.raises(asyncio.CancelledError):
        await recording
    assert disk.power_cut()[path_of(tmp_path, lease)].count(b"\n") == 1


@pytest.mark.parametrize("operation", ["open", "append", "sync"])
async def test_leaving_a_disk_that_refuses_says_what_is_lost(tmp_path, clock, disk, samples, operation):
    lease = samples.lease()

    async def record():
        async with JournalRecorder(tmp_path, clock, disk=disk) as recorder:
            await recorder.open(lease, samples.requests(lease))
            disk.fail(operation, errno.ENOSPC, times=1000)
            recorder.append(lease, samples.success(0))
            await asyncio.sleep(0.005)
            recorder.append(lease, samples.success(1))

    with pytest.raises(StorageError, match=r"No space left on device; 2 outcomes are not recorded"):
        await record()
    assert not disk._paths


async def test_a_really_full_disk_loses_nothing(tiny_filesystem, clock, samples, eventually):
    ballast = tiny_filesystem / "ballast"
    ballast.write_bytes(bytes(48 * 1024))
    lease = samples.lease(count=40)
    async with JournalRecorder(tiny_filesystem, clock) as recorder:
        await recorder.open(lease, samples.requests(lease))
        clock.hold()
        for index in range(40):
            recorder.append(lease, samples.success(index, b'"%b"' % (b"x" * 500)))
        await eventually(lambda: recorder.obstacle)
        assert recorder.obstacle.endswith("No space left on device")
        assert read_journal(path_of(tiny_filesystem, lease), lease.shard).clean
        ballast.unlink()
        clock.release()
        assert await announced(recorder) == 40
    contents = read_journal(path_of(tiny_filesystem, lease), lease.shard)
    assert contents.clean
    assert list(contents.outcomes) == list(range(40))


async def test_a_hastened_shard_is_durable_at_once_and_the_others_wait(start, clock, samples):
    recorder, lease = await start(sync_s=1e6)
    recorder.append(lease, samples.success(0))
    assert await announced(recorder) == 1
    recorder.append(lease, samples.success(1))
    recorder.append(lease, samples.success(2))
    recorder.hasten(lease)
    assert await announced(recorder) == 2
    assert clock.time < 1


async def test_a_shard_hastened_while_it_is_synced_is_synced_again_at_once(start, clock, disk, samples):
    recorder, lease = await start(sync_s=1e6)
    recorder.append(lease, samples.success(0))
    await asyncio.sleep(0)  # the writer has taken the first, and is on its way to the disk
    recorder.append(lease, samples.success(1))
    recorder.hasten(lease)
    durable = 0
    while durable < 2:
        durable += await announced(recorder)
    assert clock.time < 1


async def test_a_later_run_is_told_what_is_held_against_requests_without_an_outcome(tmp_path, clock, samples):
    lease = samples.lease()
    async with JournalRecorder(tmp_path, clock) as recorder:
        await recorder.open(lease, samples.requests(lease))
        recorder.remember(lease, 1, Grudge(1, 0.5))
        recorder.remember(lease, 2, Grudge(1, 0.5))
        recorder.remember(lease, 2, Grudge(2, 80.0))
        recorder.append(lease, samples.success(1))
    with path_of(tmp_path, lease).open("ab") as journal:
        journal.write(b"torn")
    async with JournalRecorder(tmp_path, clock) as recorder:
        replay = await recorder.open(lease, samples.requests(lease))
    assert replay.finished == {1}
    assert replay.tally.succeeded == 1
    assert replay.grudges == {2: Grudge(2, 80.0)}


async def test_what_is_held_against_a_request_is_durable_within_sync_s(
    start, clock, disk, samples, eventually
):
    recorder, lease = await start(sync_s=1.0)
    recorder.remember(lease, 0, Grudge(1, 0.5))
    await eventually(lambda: any(disk.power_cut().values()))
    (data,) = disk.power_cut().values()
    assert parse_journal(data, lease.shard).grudges == {0: Grudge(1, 0.5)}

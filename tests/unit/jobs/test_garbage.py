"""What belongs to nothing in a store, beside what does."""

import os

import msgspec
import pytest
from kept_jobs import kept_job

from dispatcher.jobs.details import Made, moved, stored
from dispatcher.jobs.garbage import Kind, collect_garbage
from dispatcher.jobs.life import Stage
from dispatcher.jobs.retention import Retention
from dispatcher.queue.records import JobRecord, JobStatus
from dispatcher.storage.folder import Folder

NOW = 1_000_000.0
OLD, YOUNG = NOW - 601, NOW - 599


class Clock:
    time = NOW

    def now(self):
        return self.time

    def wall(self):
        return self.time


class Queue:
    """What garbage is held against, without a database."""

    def __init__(self):
        self.records, self.files = [], set()
        self.keeping = self

    async def jobs(self):
        return self.records

    async def file_ids(self):
        return self.files


class World:
    def __init__(self, root):
        self.root, self.queue, self.store = root, Queue(), Folder(root)
        self.retention = Retention(Clock(), None, 600.0)

    async def put(self, key, written_at=OLD, content=b"12345"):
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (written_at, written_at))

    async def file(self, name):
        await self.put(f"files/{name}")
        self.queue.files.add(name)

    def job(self, name, stage=Stage.IN_PROGRESS, **details):
        kept = kept_job(name, owner="ann", stage=Stage.VALIDATING)
        reached = moved(msgspec.structs.replace(kept.details, **details), stage, OLD)
        record = JobRecord(kept.job, stored(reached), JobStatus.ACTIVE, OLD, 0, 1.0, 0, 0, 0, 0)
        self.queue.records.append(record)

    def paths(self):
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())

    async def collect(self, **options):
        collected = await collect_garbage(self.store, self.queue, self.retention, **options)
        return {
            kind: (found.objects, found.bytes) for kind, found in collected.found.items() if found.objects
        }


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


async def test_bytes_without_a_record_are_garbage_once_they_are_old(world):
    await world.file("file-kept")
    await world.put("files/file-stray")
    await world.put("files/file-cut.upload")
    await world.put("files/file-coming", YOUNG)
    assert await world.collect() == {Kind.NO_FILE: (2, 10)}
    assert world.paths() == ["files/file-coming", "files/file-kept"]


async def test_files_that_are_being_made_or_that_jobs_read_are_none(world):
    for name in ("file-in", "file-out", "file-errors", "file-over"):
        await world.put(f"files/{name}")
    world.job("batch_1", input_file_id="file-in")
    world.job("batch_2", Stage.FINALIZING, making=Made("file-out", "file-errors"))
    world.job("batch_3", Stage.FAILED, input_file_id="file-over")
    assert await world.collect() == {Kind.NO_FILE: (1, 5)}
    assert world.paths() == ["files/file-errors", "files/file-in", "files/file-out"]


async def test_journals_are_kept_while_their_job_may_go_on(world):
    for name in ("batch_open", "batch_ended", "batch_over", "batch_gone"):
        await world.put(f"journals/{name}/000/000000/000001")
    await world.put("journals/batch_new/000/000000/000001", YOUNG)
    await world.file("file-out")
    world.job("batch_open")
    world.job("batch_ended", Stage.COMPLETED, output_file_id="file-out")
    world.job("batch_over", Stage.COMPLETED, output_file_id="file-deleted")
    assert await world.collect() == {Kind.NO_JOB: (1, 5), Kind.JOB_OVER: (1, 5)}
    assert [key.split("/")[1] for key in world.paths()] == [
        "file-out",
        "batch_ended",
        "batch_new",
        "batch_open",
    ]


async def test_of_a_shards_journals_the_latest_is_kept(world):
    world.job("batch_1")
    for number in (0, 1):
        for name in ("000001", "000002", "000002.reopened"):
            await world.put(f"journals/batch_1/000/00000{number}/{name}")
    await world.put("journals/batch_1/000/000002/000001")
    await world.put("journals/batch_1/000/000003/000001", YOUNG)
    await world.put("journals/batch_1/000/000003/000002")
    assert await world.collect() == {Kind.SUPERSEDED: (4, 20)}
    assert [key.removeprefix("journals/batch_1/000/") for key in world.paths()] == [
        "000000/000002.reopened",
        "000001/000002.reopened",
        "000002/000001",
        "000003/000001",
        "000003/000002",
    ]


async def test_a_dry_run_says_the_same_and_removes_nothing(world):
    await world.put("files/file-stray")
    before = world.paths()
    assert await world.collect(dry_run=True) == {Kind.NO_FILE: (1, 5)}
    assert world.paths() == before
    assert await world.collect() == {Kind.NO_FILE: (1, 5)}
    assert world.paths() == []


async def test_a_queue_of_a_directory_has_links_to_inputs_and_they_go_with_their_job(world):
    world.job("batch_open")
    await world.put("inputs/batch_open")
    await world.put("inputs/batch_gone")
    assert await world.collect() == {Kind.NO_JOB: (1, 5)}
    assert world.paths() == ["inputs/batch_open"]


def test_an_ended_job_is_wanted_until_its_files_are_gone_or_its_time_is_over():
    kept = kept_job("batch_1", owner="ann", stage=Stage.VALIDATING, output_file_id="file-out")
    ended = moved(kept.details, Stage.COMPLETED, NOW - 1000)
    forever, for_a_time = Retention(Clock(), None, 600.0), Retention(Clock(), 1000.0, 600.0)
    assert forever.wants(ended, {"file-out", "file-other"})
    assert not forever.wants(ended, {"file-other"})
    assert for_a_time.wants(ended, {"file-out"})
    assert not replace_clock(for_a_time, NOW + 1).wants(ended, {"file-out"})
    assert replace_clock(for_a_time, NOW + 1).wants(kept.details, set())


def replace_clock(retention, time):
    clock = Clock()
    clock.time = time
    return Retention(clock, retention._journals_kept_s, retention._orphans_kept_s)

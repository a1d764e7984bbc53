"""Inputs and journals in a store, without a database: the queue is what these need of one."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from kept_jobs import kept_job

from dispatcher.errors import InputError, StorageError
from dispatcher.jobs.details import stored
from dispatcher.jobs.life import Stage
from dispatcher.jobs.places import Places
from dispatcher.jobs.retention import Retention
from dispatcher.jobs.stored import StoredArchive
from dispatcher.model import Lease, Shard
from dispatcher.results.copies import Copies
from dispatcher.storage.folder import Folder


class Clock:
    def wall(self):
        return 1_000_000.0


class Queue:
    def __init__(self):
        self.records, self.asked, self.keeping = {}, 0, self

    async def job(self, job_id):
        self.asked += 1
        return self.records.get(job_id)

    async def jobs(self):
        return list(self.records.values())

    async def file_ids(self):
        return set()

    def add(self, name):
        kept = kept_job(name, owner="ann", stage=Stage.IN_PROGRESS)
        self.records[kept.id] = SimpleNamespace(job=kept.job, details=stored(kept.details))
        return kept


class World:
    def __init__(self, root):
        self.queue, self.store = Queue(), Folder(root / "store")
        (root / "store").mkdir()
        self.copies = Copies(root / "scratch" / "journals")
        places = Places(root / "scratch")
        self.archive = StoredArchive(
            self.store, self.queue, places, self.copies, Retention(Clock(), None, 600.0)
        )

    async def upload(self, content):
        async with self.store.receive("files/file-1") as incoming:
            await incoming.write(content)
            await incoming.keep()


@pytest.fixture
async def world(tmp_path):
    made = World(tmp_path)
    await made.archive.open((), ())
    return made


def line(number):
    body = {"model": "m", "prompt": "x"}
    row = {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(row).encode() + b"\n"


async def test_a_shards_requests_are_a_range_of_its_jobs_input_whose_name_is_asked_for_once(world):
    lines = [line(number) for number in range(6)]
    await world.upload(b"".join(lines))
    job = world.queue.add("batch_1").job
    start, length = len(lines[0]) * 2, len(lines[0]) * 3
    for _ in range(3):
        requests = await world.archive.payloads.read(Lease(job, Shard(1, 2, 3, start, length, (3,)), 1))
        assert [(request.index, request.custom_id) for request in requests] == [(2, "row-2"), (4, "row-4")]
    assert world.queue.asked == 1


async def test_an_input_that_is_not_what_was_checked_is_an_error(world):
    await world.upload(line(0) * 2)
    job = world.queue.add("batch_1").job
    with pytest.raises(StorageError, match="files/file-1, byte 0: the input has changed"):
        await world.archive.payloads.read(Lease(job, Shard(0, 0, 3, 0, 1000, ()), 1))


async def test_the_requests_of_a_job_that_is_no_more_cannot_be_read(world):
    job = kept_job("batch_gone", owner="ann", stage=Stage.IN_PROGRESS).job
    with pytest.raises(StorageError, match="batch_gone is no more"):
        await world.archive.payloads.read(Lease(job, Shard(0, 0, 1, 0, 10, ()), 1))


async def test_an_input_is_read_in_a_thread_as_a_file(world):
    content = b"".join(line(number) for number in range(100))
    await world.upload(content)
    kept = world.queue.add("batch_1")

    def read():
        with world.archive.input(kept) as file:
            first = file.readline()
            file.seek(len(content) - 10)
            end = file.read()
            file.seek(0)
            return file.name, first, end, file.read(), file.tell()

    found = await asyncio.to_thread(read)
    assert found == ("files/file-1", line(0), content[-10:], content, len(content))


async def test_an_input_that_was_deleted_before_it_was_read_is_the_jobs_fault_and_says_so(world):
    kept = world.queue.add("batch_1")

    def read():
        with world.archive.input(kept):
            pass

    with pytest.raises(InputError) as raised:
        await asyncio.to_thread(read)
    assert raised.value.faults[0].code == "file_deleted"


async def test_copies_of_journals_of_jobs_that_are_no_more_are_removed_and_no_others(world, tmp_path):
    kept = [world.queue.add("batch_1"), kept_job("batch_gone", owner="ann", stage=Stage.IN_PROGRESS)]
    for each in kept:
        world.copies.begin(Lease(each.job, Shard(0, 0, 4, 0, 0, ()), 1), None)
    await world.archive.collect_garbage()
    assert world.copies.jobs() == {"batch_1"}

"""Jobs in memory and their rows in the queue, which other nodes change as well."""

import asyncio
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import msgspec
import pytest
from kept_jobs import kept_job

from dispatcher.dispatch.ledger import Ledger
from dispatcher.errors import JobMovedError
from dispatcher.jobs.details import stored
from dispatcher.jobs.life import Stage
from dispatcher.jobs.roll import TRIES_MAX, Roll
from dispatcher.model import JobId, Tally
from dispatcher.queue.custody import Custody
from dispatcher.queue.records import JobRecord, JobStatus

A = JobId("a")


class FakeQueue:
    """Jobs by id. `read` is called when something was read, and not yet answered."""

    def __init__(self):
        self.records = {}
        self.keeping = self
        self.read = lambda: None

    async def job(self, job_id):
        found = self.records.get(job_id)
        self.read()
        return found

    async def jobs(self):
        found = [*self.records.values()]
        self.read()
        return found

    async def move(self, job_id, _status, details, *, before, **_fences):
        if self.records[job_id].details != before:
            raise JobMovedError(job_id)
        self.records[job_id] = replace(self.records[job_id], details=details)

    def put(self, kept, **details):
        """Another node has the job so."""
        self.records[kept.id] = record(kept, msgspec.structs.replace(kept.details, **details))


def record(kept, details):
    return JobRecord(kept.job, stored(details), JobStatus.ACTIVE, kept.created_at, 0, 1.0, 0, 0, 0, 0)


@dataclass
class FakeNode:
    held: set = field(default_factory=set)
    withdrawn: list = field(default_factory=list)
    welcomed: list = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)

    def holds(self, job):
        return job in self.held

    def withdraw(self, job, *, at_once):
        self.withdrawn.append((job, at_once))

    def welcome(self, job):
        self.welcomed.append(job)


async def follow_elsewhere(_kept, _record):
    return


@pytest.fixture
def queue():
    return FakeQueue()


@pytest.fixture
def node():
    return FakeNode()


@pytest.fixture
def roll(queue, node):
    accounts = SimpleNamespace(follow_elsewhere=follow_elsewhere, expect=lambda _kept: None)
    return Roll(queue, node, accounts)


@pytest.fixture
def known(queue, roll):
    """A job that is here as it is in the queue."""

    def make(name, stage):
        kept = kept_job(name, owner="ann", stage=stage)
        kept.known = stored(kept.details)
        queue.put(kept)
        roll.add(kept)
        return kept

    return make


def moved(kept, stage):
    return msgspec.structs.replace(kept.details, stage=stage)


async def test_a_look_during_a_move_does_not_bring_back_what_was_before_it(roll, known):
    kept = known("a", Stage.VALIDATING)
    async with kept.lock:
        looking = asyncio.create_task(roll.look(A))
        for _ in range(5):
            await asyncio.sleep(0)
        await roll.keep(kept, moved(kept, Stage.IN_PROGRESS))
    await looking
    assert kept.stage is Stage.IN_PROGRESS


async def test_a_look_at_all_jobs_does_not_bring_back_what_was_before_a_move_of_one(roll, known, queue):
    kept = known("a", Stage.VALIDATING)

    def move_meanwhile():
        queue.read = lambda: None
        kept.details = moved(kept, Stage.IN_PROGRESS)
        kept.known = stored(kept.details)
        queue.put(kept)

    queue.read = move_meanwhile
    await roll.look_at_all()
    assert kept.stage is Stage.IN_PROGRESS


async def test_a_look_at_all_jobs_sees_what_came_moved_and_went(roll, known, queue):
    going, moving = known("a", Stage.COMPLETED), known("b", Stage.IN_PROGRESS)
    coming = kept_job("c", owner="bob", stage=Stage.VALIDATING)
    queue.put(moving, paused=True)
    queue.put(coming)
    del queue.records[going.id]
    await roll.look_at_all()
    assert [*roll.jobs] == ["b", "c"]
    assert moving.details.paused


async def test_a_job_that_was_seen_before_it_is_kept_is_kept_once(roll, known):
    seen = known("a", Stage.VALIDATING)
    assert roll.add(kept_job("a", owner="ann", stage=Stage.VALIDATING)) is seen
    assert roll.jobs == {A: seen}


async def test_a_job_that_another_node_deleted_is_let_go_of(roll, known, queue, node):
    kept = known("a", Stage.COMPLETED)
    node.ledger.follow(A, Tally(), 3, {})
    kept.custody = Custody(A, "n", 1)
    del queue.records[A]
    await roll.look(A)
    assert (roll.jobs, kept.custody, kept.wake.is_set()) == ({}, None, True)
    assert (node.ledger.shards_settled(A), node.welcomed) == (0, [A])


async def test_what_is_in_hand_of_a_job_that_ended_while_we_were_cut_off_goes_back(roll, known, queue, node):
    kept = known("a", Stage.IN_PROGRESS)
    node.held.add(A)
    queue.put(kept, stage=Stage.CANCELLED)
    await roll.look(A)
    assert (node.withdrawn, node.welcomed) == ([(A, True)], [])


async def test_a_change_is_decided_anew_where_another_node_was_quicker(roll, known, queue):
    kept, seen = known("a", Stage.IN_PROGRESS), []
    queue.put(kept, paused=True)

    async def decide():
        seen.append(kept.details.paused)
        await roll.keep(kept, moved(kept, Stage.CANCELLING))

    await roll.change(kept, decide)
    assert (seen, kept.details.paused, kept.stage) == ([False, True], True, Stage.CANCELLING)


async def test_a_change_that_others_always_precede_is_given_up(roll, known):
    kept, tries = known("a", Stage.IN_PROGRESS), []

    async def decide():
        tries.append(1)
        raise JobMovedError("a")

    with pytest.raises(JobMovedError):
        await roll.change(kept, decide)
    assert len(tries) == TRIES_MAX

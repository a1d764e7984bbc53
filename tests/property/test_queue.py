"""Two nodes at work on one queue: in memory, and in a file. tests/e2e/postgres has it on PostgreSQL."""

import tempfile
from pathlib import Path

from hypothesis import settings
from queue_machine import LEASE_S, NAMES, Contract, CustodyContract, SqlContract

from dispatcher.model import Job
from dispatcher.queue.memory import MemoryQueue
from dispatcher.queue.sql import open_queue

SETTINGS = settings(max_examples=10, stateful_step_count=25, deadline=None)


async def open_queues(machine):
    """Two on one new file."""
    directory = Path(machine.stack.enter_context(tempfile.TemporaryDirectory()))
    opened = [open_queue(directory / "queue.db", machine.clock, lease_s=LEASE_S) for _ in NAMES]
    return [await machine.stack.enter_async_context(each) for each in opened]


class FileContract(SqlContract):
    open_queues = open_queues


class FileCustody(CustodyContract):
    open_queues = open_queues


class MemoryContract(Contract):
    def __init__(self):
        self.appeared = []
        super().__init__()

    async def open(self):
        queue = MemoryQueue(self.clock, LEASE_S)
        return queue, queue

    async def add_shards(self, job_id, shards):
        for shard in shards:
            self.queues[NAMES[0]].add(Job(job_id), shard)

    def added(self, job_id):
        """A job is as old as its oldest unbroken run of unsettled shards."""
        if all(shard.settled for shard in self.model[job_id]):
            self.appeared = [*(other for other in self.appeared if other != job_id), job_id]

    def order(self):
        return self.appeared


TestSqlQueue = FileContract.TestCase
TestSqlQueue.settings = SETTINGS
TestCustody = FileCustody.TestCase
TestCustody.settings = settings(SETTINGS, max_examples=5)
TestMemoryQueue = MemoryContract.TestCase
TestMemoryQueue.settings = settings(SETTINGS, max_examples=60)

"""Two nodes at work on one queue on PostgreSQL, against the same model as in tests/property."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from queue_machine import LEASE_S, NAMES, CustodyContract, SqlContract
from sqlalchemy import literal

from dispatcher.app.clock import SystemClock
from dispatcher.queue.postgresql import open_postgresql
from dispatcher.queue.sql import SqlQueue

pytestmark = [pytest.mark.services, pytest.mark.timeout(240)]
SETTINGS = settings(max_examples=25, stateful_step_count=30, deadline=None)
TABLES = "jobs, shards, custody, nodes, members, files"


async def open_queues(machine):
    """Two with connections of their own, on the emptied tables of one database."""
    queues = []
    for _ in NAMES:
        database = await machine.stack.enter_async_context(open_postgresql(machine.url, SystemClock()))
        queues.append(SqlQueue(database, machine.clock, lambda: literal(machine.clock.wall()), LEASE_S))
    async with database.write() as connection:
        await connection.exec_driver_sql(f"TRUNCATE {TABLES}")
    return queues


def test_two_nodes_do_what_the_model_does(url):
    class Machine(SqlContract):
        open_queues = open_queues

    Machine.url = url
    run(Machine)


def test_two_nodes_take_jobs_as_the_model_does(url):
    class Machine(CustodyContract):
        open_queues = open_queues

    Machine.url = url
    run(Machine)


def run(machine):
    run_state_machine_as_test(machine, settings=SETTINGS)

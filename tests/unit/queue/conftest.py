import asyncio

import pytest

pytest.register_assert_rewrite("queue_contract", "queue_jobs_contract", "queue_nodes_contract")

from queue_worlds import VirtualClock, clock, node, open_world, other, shards  # noqa: E402  # after that

from dispatcher.queue.sql import open_queue  # noqa: E402

__all__ = ["clock", "node", "other", "shards"]


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """A new queue's file: making it once saves most of the suite's time."""
    path = tmp_path_factory.mktemp("queue") / "queue.db"

    async def make():
        async with open_queue(path, VirtualClock()):
            pass

    asyncio.run(make())
    return path.read_bytes()


@pytest.fixture(params=["memory", "sql"])
async def world(request, tmp_path, empty_database):
    async with open_world(request.param, tmp_path, empty_database) as opened:
        yield opened


@pytest.fixture
async def sql(tmp_path, empty_database):
    async with open_world("sql", tmp_path, empty_database) as opened:
        yield opened

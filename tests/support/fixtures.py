"""Fixtures of the tests that run the command: integration and e2e."""

from contextlib import AsyncExitStack

import pytest
from commands import Commands, open_zygote
from jobs import Job

from dispatcher.testing.server import FakeServer
from dispatcher.testing.settings import FakeServerSettings


@pytest.fixture(scope="session")
def zygote(tmp_path_factory):
    with open_zygote(tmp_path_factory.mktemp("zygote")) as path:
        yield path


@pytest.fixture
async def cli(zygote, tmp_path):
    async with Commands(tmp_path, zygote, {"DISPATCHER_RESULTS__SYNC_S": "0.05"}) as commands:
        yield commands


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


@pytest.fixture
async def serve():
    """Starts fake servers: `await serve(answer_tokens=1)`."""
    async with AsyncExitStack() as stack:

        async def start(host="127.0.0.1", port=0, **settings):
            server = FakeServer(FakeServerSettings(**settings), host, port)
            return await stack.enter_async_context(server)

        yield start


@pytest.fixture
async def server(serve):
    return await serve()

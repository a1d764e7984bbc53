"""Four real servers for all tests in here: they take a minute or two to start."""

from contextlib import ExitStack

import pytest
from real_job import RealJob
from vllm_fleet import Fleet


@pytest.fixture(scope="package")
def fleet(tmp_path_factory):
    fleet = Fleet(tmp_path_factory.mktemp("vllm"))
    with ExitStack() as stack:
        for server in fleet.all:
            stack.callback(server.stop)
            server.start()
        for server in fleet.all:
            server.wait_until_ready()
        yield fleet


@pytest.fixture
def new_job(tmp_path):
    """Makes a job, and sees to it that no process of it is left."""
    with ExitStack() as stack:

        def new(rows, servers, **settings):
            job = RealJob(tmp_path, rows, servers, **settings)
            stack.callback(job.kill)
            return job

        yield new

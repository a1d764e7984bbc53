import os
from pathlib import Path

import pytest
from engine import engine_with_image, missing
from fixtures import cli, job, serve, server, zygote
from object_store import s3
from postgres_server import postgres

__all__ = ["cli", "job", "postgres", "s3", "serve", "server", "zygote"]


@pytest.fixture(scope="session")
def engine():
    """A Docker engine with the project's image. Its folder stays: the next build is quick."""
    if (why := missing()) is not None:
        if os.environ.get("DISPATCHER_REQUIRE_SERVICES"):
            pytest.fail(why)
        pytest.skip(why)
    with engine_with_image(Path.home() / ".cache" / "dispatcher-docker") as engine:
        yield engine

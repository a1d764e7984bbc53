"""The demo: a rehearsal of a whole job on fake servers, one of which dies and comes back."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from dispatcher.app.requests_file import RequestsFile
from dispatcher.app.run import JobRun
from dispatcher.config import Config, load_config
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.faults import Die
from dispatcher.testing.server import FakeServer
from dispatcher.testing.settings import FakeServerSettings

SERVERS = 4
ROWS = 2000
DIES_AT, BACK_AT = 0.3, 0.6
ENGINE = EngineSettings(max_sequences=48, decode_step_s=0.02, decode_step_growth_s=0.0003)
"""Slow enough to watch: about 15 seconds for the whole demo."""
REVIEWS = ("What a find.", "It broke on the second day.", "It does what it says.", "Never again.")


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo that is ready to run."""

    job: JobRun
    directory: Path

    @property
    def input(self) -> Path:
        """The requests."""
        return self.directory / "requests.jsonl"


@asynccontextmanager
async def open_demo(directory: Path) -> AsyncIterator[Demo]:
    """Start the servers, write the requests, and watch the job to kill a server and restore it."""
    await asyncio.to_thread(_write_requests, directory)
    async with AsyncExitStack() as stack:
        settings = FakeServerSettings(models=("demo-model",), answer_tokens=24, engine=ENGINE)
        servers = [await stack.enter_async_context(FakeServer(settings)) for _ in range(SERVERS)]
        demo = Demo(_job(directory, servers), directory)
        weather = asyncio.create_task(_weather(demo.job, servers[1]), name="weather")
        try:
            yield demo
        finally:
            weather.cancel()


def _job(directory: Path, servers: Sequence[FakeServer]) -> JobRun:
    config = _config(directory, servers)
    return JobRun(config, RequestsFile(config, str(directory / "requests.jsonl")))


def _config(directory: Path, servers: Sequence[FakeServer]) -> Config:
    settings = {
        "servers": [server.url for server in servers],
        "pool": {
            "probe_interval_s": 0.5,
            "scrape_interval_s": 0.5,
            "readmit_backoff_min_s": 0.5,
            "readmit_backoff_max_s": 1,
        },
        "run": {"output": str(directory / "out.jsonl"), "restart": True},
    }
    return load_config(None, settings, {})


def _write_requests(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "requests.jsonl").write_text("".join(_requests()))


def _requests() -> Iterator[str]:
    for number in range(ROWS):
        question = f"Is this review positive? Review {number}: {REVIEWS[number % len(REVIEWS)]}"
        body = {
            "model": "demo-model",
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 48,
        }
        row = {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        yield json.dumps(row) + "\n"


async def _weather(job: JobRun, server: FakeServer) -> None:
    log = structlog.get_logger("dispatcher.demo")
    await _share_done(job, DIES_AT)
    log.warning("demo_kills_a_server", server=server.url)
    await server.die(Die(seconds=None))
    await _share_done(job, BACK_AT)
    log.warning("demo_restores_the_server", server=server.url)
    await server.restart()


async def _share_done(job: JobRun, share: float) -> None:
    while (done := job.snapshot().done).succeeded + done.failed < share * ROWS:  # noqa: ASYNC110  # a demo may poll
        await asyncio.sleep(0.05)

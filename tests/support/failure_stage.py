"""The stage for the failures from the field: fake servers on real HTTP, a job, what was seen of both."""

import asyncio
import contextlib
import json
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path

from dispatcher.app.requests_file import RequestsFile
from dispatcher.app.run import JobRun, Summary
from dispatcher.config import load_config
from dispatcher.results.verify import verify
from dispatcher.testing import FakeServer, FakeServerSettings

STALL_S, PROBE_S = 2.0, 0.2
WITHIN_S = 40.0
"""A run that takes longer than this hangs."""
SETTINGS = {
    "dispatch": {"request_timeout_s": 10, "max_attempts": 3},
    "pool": {
        "probe_interval_s": PROBE_S,
        "probe_timeout_s": 1,
        "scrape_interval_s": PROBE_S,
        "stall_s": STALL_S,
        "connect_timeout_s": 1,
        "readmit_backoff_min_s": 0.2,
        "readmit_backoff_max_s": 1,
    },
    "results": {"sync_s": 0.05},
}


@dataclass
class Seen:
    """One look at a server: when, in which state, with how many of our requests and permits."""

    at: float
    server: str
    state: str
    in_flight: int
    limit: int
    evictions: int


@dataclass
class Result:
    """What a run came to."""

    summary: Summary
    successes: dict[str, dict]
    errors: dict[str, dict]
    seen: list[Seen] = field(default_factory=list)

    def states(self, server: FakeServer) -> list[str]:
        """The states that the server was seen in, one after the other."""
        states = []
        for look in self.seen:
            if look.server == server.url and (not states or states[-1] != look.state):
                states.append(look.state)
        return states

    def looks(self, server: FakeServer) -> list[Seen]:
        """Every look at one server."""
        return [look for look in self.seen if look.server == server.url]

    def evictions(self, server: FakeServer) -> int:
        """How often the server was evicted."""
        return max((look.evictions for look in self.looks(server)), default=0)

    def evicted_at(self, server: FakeServer) -> float:
        """When the server was first seen evicted."""
        return next(look.at for look in self.looks(server) if look.state == "evicted")

    def out_at(self, server: FakeServer, since: float) -> float:
        """When the server was first seen out of rotation after that."""
        return next(look.at for look in self.looks(server) if look.at >= since and look.state != "active")

    def code(self, row: str) -> str:
        """A failed row's error code."""
        return self.errors[row]["error"]["code"]

    def attempts(self, row: str) -> int:
        """What a row's provenance says of its sends."""
        line = self.successes.get(row) or self.errors[row]
        return line["provenance"]["attempts"]


def line(number: int, *, url: str = "/v1/chat/completions", **body) -> str:
    """One input line; the fake servers log it as `row-<number>`."""
    content = body.pop("content", f"row-{number} what do you say?")
    whole = {"model": "fake-model", "messages": [{"role": "user", "content": content}], **body}
    return json.dumps({"custom_id": f"row-{number}", "method": "POST", "url": url, "body": whole})


def rows(count: int) -> str:
    """So many plain lines."""
    return "".join(line(number) + "\n" for number in range(count))


@asynccontextmanager
async def fleet(count: int, settings: FakeServerSettings | None = None):
    """So many fake servers."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeServer(settings)) for _ in range(count)]


def sends(*servers: FakeServer) -> Counter:
    """How often each row reached the servers; canaries are not counted."""
    return Counter(record.marker for server in servers for record in server.requests if record.marker)


async def until(holds) -> None:
    """Wait for what is bound to come; the run's own bound ends it if it does not."""
    while not holds():  # noqa: ASYNC110  # what is waited for is a fake server's state
        await asyncio.sleep(0.005)


def merged(base: dict, settings: dict) -> dict:
    """These settings with those on top, section by section."""
    sections = base.keys() | settings.keys()
    return {
        name: {**base.get(name, {}), **settings[name]}
        if isinstance(settings.get(name), dict)
        else settings.get(name, base.get(name))
        for name in sections
    }


class Stage:
    """Runs jobs in a directory of their own and keeps what was seen."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.input = directory / "in.jsonl"
        self.output = directory / "out.jsonl"
        self.errors = directory / "out.errors.jsonl"
        self.seen: list[Seen] = []
        self.base = SETTINGS
        """What every job of this stage is set to; empty for the defaults."""

    def job(self, servers: list[FakeServer], settings: dict, *, text: str | bytes | None = None) -> JobRun:
        """A job over these servers; without a text, the input that is there already."""
        if text is not None:
            self.input.write_bytes(text.encode() if isinstance(text, str) else text)
        overrides = merged(self.base, settings)
        overrides.setdefault("servers", [server.url for server in servers])
        overrides["run"] = {"output": str(self.output), "keep_state": True, **overrides.get("run", {})}
        config = load_config(None, overrides, {})
        return JobRun(config, RequestsFile(config, str(self.input)))

    async def run(
        self, servers: list[FakeServer], text: str | bytes | None, /, *, weather=None, **settings
    ) -> Result:
        """Run a job to its end while the weather does its worst; hold it to what holds for every job."""
        job = self.job(servers, settings, text=text)
        self.seen.clear()
        helpers = [asyncio.create_task(self._watch(job))]
        if weather is not None:
            helpers.append(asyncio.create_task(weather(job)))
        try:
            summary = await self._bounded(job)
        finally:
            await self._end(helpers)
        return self._checked(summary)

    async def _bounded(self, job: JobRun) -> Summary:
        """The job's end; where it hangs, the error tells how the job stood, since nobody can ask it later."""
        running = asyncio.create_task(job.execute())
        done, _pending = await asyncio.wait({running}, timeout=WITHIN_S)
        if not done:
            stands = "\n".join(f"{name}: {value}" for name, value in _fields(job.snapshot()))
            running.cancel()
            await asyncio.wait({running})
            raise AssertionError(f"the job hangs after {WITHIN_S:g} s; it stands so:\n{stands}")
        return running.result()

    async def _end(self, helpers) -> None:
        for helper in helpers:
            if helper.done():
                helper.result()
            helper.cancel()
        for helper in helpers:
            with contextlib.suppress(asyncio.CancelledError):
                await helper

    async def _watch(self, job: JobRun) -> None:
        while True:
            now = asyncio.get_running_loop().time()
            for view in job.snapshot().servers:
                seen = (view.server, view.state, view.in_flight, view.limit, view.evictions)
                self.seen.append(Seen(now, *seen))
            await asyncio.sleep(0.01)

    def _checked(self, summary: Summary) -> Result:
        assert all(view.in_flight == 0 for view in summary.snapshot.servers), "a permit was not given back"
        errors = self.errors if self.errors.exists() else None
        report = verify(self.input, self.output, errors, work_dir=self.directory)
        assert report.ok, report.problems
        return Result(summary, _lines(self.output), _lines(self.errors), list(self.seen))


def _fields(snapshot) -> list[tuple[str, object]]:
    return [(each.name, getattr(snapshot, each.name)) for each in fields(snapshot)]


def _lines(path: Path) -> dict[str, dict]:
    """A file's lines by custom_id, as a strict reader has them: split on the line feed alone."""
    if not path.exists():
        return {}
    pieces = path.read_bytes().split(b"\n")
    assert pieces.pop() == b""
    found = [json.loads(piece, parse_constant=_no_constant) for piece in pieces]
    return {each["custom_id"]: each for each in found}


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")

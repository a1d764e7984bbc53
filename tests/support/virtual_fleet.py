"""A job on simulated servers under virtual time, with what the dispatcher logged of its servers."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import structlog

from dispatcher.config import Config
from dispatcher.model import ServerId, ServerSpec
from dispatcher.testing.simulation.counting import Answers
from dispatcher.testing.simulation.policies import Setting, dispatch
from dispatcher.testing.simulation.rows import JobPlan, Rows
from dispatcher.testing.simulation.scenario import ServerPlan
from dispatcher.testing.simulation.servers import SimulatedServer
from dispatcher.testing.simulation.virtual_loop import run_virtually

Weather = Callable[[asyncio.AbstractEventLoop, list[SimulatedServer]], None]


@dataclass(frozen=True)
class Said:
    """One line of the dispatcher's log."""

    at: float
    event: str
    fields: dict


@dataclass
class Course:
    """What came of a job, or of its first `seconds`."""

    seconds: float = 0.0
    """Virtual seconds until the last answer."""
    sends: int = 0
    answered: int = 0
    """Answers of all servers."""
    log: list[Said] = field(default_factory=list)
    servers: list[SimulatedServer] = field(default_factory=list)

    def moves(self, server: int, *events: str) -> list[Said]:
        """What was said of one server's moves: `server_suspect`, `server_evicted` and so on."""
        id_ = self.servers[server].id
        return [each for each in self.log if each.fields.get("server") == id_ and each.event in events]

    def count(self, event: str) -> int:
        """How often something was said of any server."""
        return sum(each.event == event for each in self.log)


def run_fleet(
    plans: list[ServerPlan],
    job: JobPlan,
    *,
    seed: int = 0,
    weather: Weather = lambda _loop, _servers: None,
    until_s: float = 1e6,
    **settings: dict,
) -> Course:
    """Run a job on these servers to its end, or until so many virtual seconds have passed."""
    course = Course()

    async def whole() -> None:
        loop = asyncio.get_running_loop()
        ids = [ServerId(f"http://s{number}") for number in range(len(plans))]
        course.servers = [
            SimulatedServer(id_, plan, loop, Random(f"{seed} {id_}"))
            for id_, plan in zip(ids, plans, strict=True)
        ]
        weather(loop, course.servers)
        witness = Answers(loop, job.rows)
        specs = [ServerSpec(id_, id_, limit=plan.limit) for id_, plan in zip(ids, plans, strict=True)]
        setting = Setting(Rows(job, seed), dict(zip(ids, course.servers, strict=True)), specs, witness, seed)
        with _logged(course, loop), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(until_s):
                await dispatch(setting, Config.model_validate(settings))
        course.seconds, course.sends = witness.last_at, witness.sends
        course.answered = witness.by_server.total()

    run_virtually(whole())
    return course


@contextlib.contextmanager
def _logged(course: Course, loop: asyncio.AbstractEventLoop):
    def take(_logger, _level, event):
        course.log.append(Said(loop.time(), event.pop("event"), event))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[take], wrapper_class=structlog.BoundLogger)
    try:
        yield
    finally:
        structlog.configure(**before)

"""What servers say of themselves: asked when it is needed, and kept where it does not change."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from dispatcher.model import Break, Ending, Health, ListedModel, ServerId, ServerSpec, Telemetry
from dispatcher.vllm.client.constraints import Version, parse_version
from dispatcher.vllm.client.sender import UnansweredError
from dispatcher.vllm.pages import health_of, listed_models_of, models_of, version_of

ASKED_MAX: Final = 64
"""Servers that are asked at a time."""

_T = TypeVar("_T")


class Prober(Protocol):
    """What a server says of itself (`HttpProber`). Never raises for what a server does."""

    async def page(self, server: ServerSpec, path: str) -> Ending:
        """Get one page."""

    async def scrape(self, server: ServerSpec, timeout_s: float | None = None) -> Telemetry | None:
        """`/metrics`."""


@dataclass(frozen=True, slots=True)
class Load:
    """How busy servers are: sums over their engines, and the mean of their caches. None: they do not say."""

    running: float | None = None
    """Requests that are being generated."""
    waiting: float | None = None
    """Requests that wait inside of the servers."""
    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1."""


class Facts:
    """What is known of a client's servers."""

    def __init__(self, prober: Prober, version: str | None) -> None:
        self._prober = prober
        self._given = version
        self._versions: dict[ServerId, str | None] = {}
        self._roots: dict[ServerId, dict[str, str]] = {}
        self._asking: dict[ServerId, asyncio.Lock] = {}

    async def version(self, server: ServerSpec) -> str | None:
        """The server's own word, asked once; None where it has none. The client's `version` wins."""
        try:
            return await self._version(server)
        except UnansweredError:
            return None

    async def understands(self, server: ServerSpec) -> Version | None:
        """The version as a number to compare by; None where that is not certain.

        Raises UnansweredError where the server cannot be asked: then it is not to be sent anything either.
        """
        return parse_version(await self._version(server))

    async def roots(self, server: ServerSpec) -> dict[str, str] | None:
        """The server's models, served name -> root, asked once; None where it lists none."""
        if server.id not in self._roots:
            roots = models_of(await self._prober.page(server, "/v1/models"))
            if roots is None:
                return None
            self._roots[server.id] = roots
        return self._roots[server.id]

    def forget(self, server: ServerSpec) -> None:
        """It is to be asked again: another process may be at its address."""
        self._versions.pop(server.id, None)
        self._roots.pop(server.id, None)

    async def healthy(self, server: ServerSpec) -> bool:
        """Whether `/health` says so."""
        return health_of(await self._prober.page(server, "/health"))[0] is Health.UP

    async def models(self, server: ServerSpec) -> list[ListedModel] | None:
        """`/v1/models`, in the server's order; None where it cannot be had."""
        return listed_models_of(await self._prober.page(server, "/v1/models"))

    async def load(self, server: ServerSpec) -> Load:
        """`/metrics`, as far as it steers load."""
        telemetry = await self._prober.scrape(server) or Telemetry()
        return Load(telemetry.running, telemetry.waiting, telemetry.kv_usage)

    async def _version(self, server: ServerSpec) -> str | None:
        if self._given is not None:
            return self._given
        async with self._asking.setdefault(server.id, asyncio.Lock()):
            if server.id not in self._versions:
                page = await self._prober.page(server, "/version")
                if isinstance(page, Break):
                    raise UnansweredError(page)
                self._versions[server.id] = version_of(page)
            return self._versions[server.id]


async def of_each(servers: Sequence[ServerSpec], ask: Callable[[ServerSpec], Awaitable[_T]]) -> Sequence[_T]:
    """Ask all servers, 64 at a time; answers in the servers' order."""
    turns = asyncio.Semaphore(ASKED_MAX)

    async def in_turn(server: ServerSpec) -> _T:
        async with turns:
            return await ask(server)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(in_turn(server)) for server in servers]
    return [task.result() for task in tasks]


def first_model(lists: Sequence[Sequence[ListedModel] | None]) -> str | None:
    """The model to ask for where none was named: the first of the first server that lists any.

    vLLM lists base models before adapters (entrypoints/openai/models/serving.py). None where no server lists
    one: a request without a model's name gets the server's own, or the error that explains it.
    """
    return next((models[0].id for models in lists if models), None)


def together(loads: Sequence[Load]) -> Load:
    """The load of several servers as one."""
    running = [load.running for load in loads if load.running is not None]
    waiting = [load.waiting for load in loads if load.waiting is not None]
    usage = [load.kv_usage for load in loads if load.kv_usage is not None]
    return Load(
        sum(running) if running else None,
        sum(waiting) if waiting else None,
        sum(usage) / len(usage) if usage else None,
    )


def union(lists: Sequence[Sequence[ListedModel] | None]) -> list[ListedModel]:
    """Each model once, as the first server that lists it has it."""
    found: dict[str, ListedModel] = {}
    for models in lists:
        for model in models or ():
            found.setdefault(model.id, model)
    return list(found.values())


def oldest(versions: Sequence[str | None]) -> str | None:
    """The lowest version, or the only one; None where one is not known."""
    if len(set(versions)) == 1:
        return versions[0]
    parsed = [(parse_version(version), version) for version in versions]
    known = [(number, version) for number, version in parsed if number is not None]
    return min(known)[1] if known and len(known) == len(parsed) else None

"""The shell around the pool's decisions: one task per server that probes, scrapes and tells the pool."""

import asyncio
from collections.abc import Sequence
from typing import Protocol, assert_never

from dispatcher.model import CanaryFault, CanaryReport, Health, ServerSpec, Telemetry
from dispatcher.pool.effects import Effect, GiveUp, Look, Spared
from dispatcher.pool.pool import Pool
from dispatcher.pool.server import Server, tokens_counted
from dispatcher.pool.states import State
from dispatcher.ports import Clock, Prober
from dispatcher.telemetry.metrics import Metrics

REFRESH_EVERY = 6
"""Every sixth look at a server in rotation asks for its models and whether it sleeps, not only its health."""


class Listener(Protocol):
    """Who has requests at the pool's servers: a node."""

    def give_up(self, effect: GiveUp) -> None:
        """Close the requests that are open at this server."""

    def spare(self, server: Server) -> None:
        """A suspect server was found alive."""

    def capacity_changed(self) -> None:
        """A decision may have freed or taken capacity."""


class Monitor:
    """Watches every server of a pool, as tasks of the caller's group, and tells its listeners."""

    def __init__(
        self, pool: Pool, prober: Prober, clock: Clock, metrics: Metrics, tasks: asyncio.TaskGroup
    ) -> None:
        self._pool = pool
        self._prober = prober
        self._clock = clock
        self._metrics = metrics
        self._tasks = tasks
        self._wakers: dict[Server, asyncio.Event] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self._listeners: list[Listener] = []

    def join(self, listener: Listener) -> None:
        """Tell this node, too, from now on."""
        self._listeners.append(listener)

    def leave(self, listener: Listener) -> None:
        """Tell this node no more."""
        self._listeners.remove(listener)

    def watch(self, specs: Sequence[ServerSpec]) -> None:
        """Make these the pool's members, and watch the new ones."""
        joined = self._pool.set_members(specs)
        for waker in self._wakers.values():  # any of them may have been withdrawn, or listed again
            waker.set()
        for server in joined:
            self._wakers[server] = asyncio.Event()
            task = self._tasks.create_task(self._watch(server), name=f"watch {server.spec.id}")
            self._watchers.add(task)
            task.add_done_callback(self._watchers.discard)

    def stop(self) -> None:
        """End all watching. May be called again."""
        for task in self._watchers:
            task.cancel()

    def carry_out(self, effects: Sequence[Effect]) -> None:
        """Do what the pool decided."""
        for effect in effects:
            match effect:
                case GiveUp():
                    for listener in self._listeners:
                        listener.give_up(effect)
                case Spared(server):
                    for listener in self._listeners:
                        listener.spare(server)
                case Look(server):
                    self._wakers[server].set()
                case _ as never:
                    assert_never(never)
        if effects:
            for listener in self._listeners:
                listener.capacity_changed()

    async def healthy(self, server: Server) -> bool | None:
        """Ask `/health` now: True or False where it answers, None where it does not say."""
        report = await self._prober.probe(server.spec)
        if report.health in (Health.UP, Health.DOWN):
            return report.health is Health.UP
        return False if report.health is Health.REFUSED else None

    def states(self) -> dict[str, str]:
        """Each server with its state and why: what the operator is told while the job waits."""
        servers = sorted(self._pool.servers.values(), key=lambda server: server.spec.id)
        return {server.spec.id: f"{server.state} ({server.reason})" for server in servers}

    async def _watch(self, server: Server) -> None:
        looks = 0
        while server.state is not State.GONE:
            if await self._due(server):
                looks += 1
                self.carry_out(await self._look(server, looks))
        del self._wakers[server]

    async def _due(self, server: Server) -> bool:
        """Sleep until the next check. False when the plan was changed meanwhile."""
        waker = self._wakers[server]
        waker.clear()
        delay_s = server.next_check_at - self._clock.now()
        try:
            async with asyncio.timeout(max(0.0, delay_s)):
                await waker.wait()
        except TimeoutError:
            return True
        return False

    async def _look(self, server: Server, looks: int) -> Sequence[Effect]:
        match server.state:
            case State.JOINING | State.EVICTED:
                return self._pool.probed(server, await self._prober.probe(server.spec))
            case State.VERIFYING | State.SUSPECT | State.PAUSED | State.MISMATCHED:
                return await self._examine(server)
            case State.ACTIVE:
                return await self._check(server, refresh=looks % REFRESH_EVERY == 0)
            case State.DRAINING:
                effects = await self._check(server, refresh=False)
                self._pool.remove_drained(server)
                return effects
            case State.GONE:
                return ()
            case _ as never:
                assert_never(never)

    async def _examine(self, server: Server) -> Sequence[Effect]:
        report, before = await asyncio.gather(self._prober.inspect(server.spec), self._figures(server))
        canary = CanaryReport()
        answers = report.health not in (Health.DOWN, Health.REFUSED)
        if self._pool.settings.canary and answers and not report.sleeping:
            model = next(iter(report.models), None) if report.models else None
            canary = await self._prober.canary(server.spec, model)
        slow = canary.fault is CanaryFault.SLOW
        progress = slow and before is not None and (await self._figures(server) or 0.0) > before
        return self._pool.examined(server, report, canary, progress=progress)

    async def _figures(self, server: Server) -> float | None:
        """The token counters of a suspect: they move where it is only too busy for a canary."""
        if server.state is not State.SUSPECT:
            return None
        return tokens_counted(await self._prober.scrape(server.spec))

    async def _check(self, server: Server, *, refresh: bool) -> Sequence[Effect]:
        began, state = self._clock.now(), server.state
        look = self._prober.inspect if refresh else self._prober.probe
        report, telemetry = await asyncio.gather(look(server.spec), self._scrape(server))
        if server.state is not state:  # what was seen speaks of the time before that
            return ()
        self._metrics.probe_ended(server.spec.id, self._clock.now() - began)
        told = self._pool.refreshed if refresh else self._pool.probed
        return (
            *told(server, report),
            *self._pool.scraped(server, telemetry),
            *self._pool.look_for_stall(server),
        )

    async def _scrape(self, server: Server) -> Telemetry | None:
        now = self._clock.now()
        if now < server.next_scrape_at:
            return None
        server.next_scrape_at = now + self._pool.settings.scrape_interval_s
        return await self._prober.scrape(server.spec)

"""The shell around the pool's decisions: one task per server that probes it and tells the pool, one pulse."""

import asyncio
import math
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import Protocol, assert_never

from dispatcher.model import CanaryFault, CanaryReport, Health, ProbeReport, ServerSpec
from dispatcher.pool.effects import Effect, GiveUp, Look, Spared
from dispatcher.pool.pool import Pool
from dispatcher.pool.pulse import PULSE_S, wants_look
from dispatcher.pool.server import Server, tokens_counted
from dispatcher.pool.states import State
from dispatcher.ports import Clock, Prober
from dispatcher.telemetry.metrics import Metrics

REFRESH_EVERY = 6
"""Every sixth look at a server in rotation asks for its models and whether it sleeps, not only its health.
The one after it asks the question whose answer is known, where there is one."""
TOLD_MAX = 100
"""Servers that the operator is told of one by one while the job waits, in each of the log's lines."""
NOT_ASKED = CanaryReport()
SCRAPE_SHARE = 0.4
"""A busy server's figures are waited for this share of `pool.stall_s`: two such waits, and the time between
them, are no stall."""
HOLDING = (State.ACTIVE, State.DRAINING)


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
        self._looking: set[Server] = set()
        self._pulse: asyncio.Task[None] | None = None
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
            self._start(self._watch(server), f"watch {server.spec.id}")
        if self._pulse is None:
            self._pulse = self._start(self._keep_pulse(), "pulse")

    def _start(self, work: Coroutine[None, None, None], name: str) -> "asyncio.Task[None]":
        task = self._tasks.create_task(work, name=name)
        self._watchers.add(task)
        task.add_done_callback(self._watchers.discard)
        return task

    def stop(self) -> None:
        """End all watching. May be called again."""
        for task in self._watchers:
            task.cancel()

    def carry_out(self, effects: Sequence[Effect]) -> None:
        """Do what the pool decided."""
        for effect in effects:
            match effect:
                case GiveUp(after_s=after_s) if after_s > 0:
                    self._start(self._give_up_later(effect), f"give up {effect.server.spec.id}")
                case GiveUp():
                    self._give_up(effect)
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

    def _give_up(self, effect: GiveUp) -> None:
        for listener in self._listeners:
            listener.give_up(effect)

    async def _give_up_later(self, effect: GiveUp) -> None:
        await self._clock.sleep(effect.after_s)
        self._give_up(effect)
        for listener in self._listeners:
            listener.capacity_changed()

    async def healthy(self, server: Server) -> bool | None:
        """Ask `/health` now: True or False where it answers, None where it does not say."""
        report = await self._prober.probe(server.spec)
        if report.health in (Health.UP, Health.DOWN):
            return report.health is Health.UP
        return False if report.health is Health.REFUSED else None

    def states(self) -> dict[str, str]:
        """Each server with its state and why: what the operator is told while the job waits.

        One in rotation can be no help, too: it is told which models it serves. Of many, some are told.
        """
        servers = sorted(self._pool.servers.values(), key=lambda server: server.spec.id)
        told: dict[str, str] = {each.spec.id: f"{each.state} ({_why(each)})" for each in servers[:TOLD_MAX]}
        if rest := Counter(server.state.value for server in servers[TOLD_MAX:]):
            told[f"and {rest.total()} more"] = ", ".join(f"{n} {state}" for state, n in sorted(rest.items()))
        return told

    async def _watch(self, server: Server) -> None:
        looks = 0
        while server.state is not State.GONE:
            if await self._due(server):
                looks += 1
                await self._look_unless_overtaken(server, looks)
        del self._wakers[server]

    async def _look_unless_overtaken(self, server: Server, looks: int) -> None:
        """Look and tell, unless other evidence changes the plan meanwhile: a look can take long."""
        planned, server.looked_at = server.next_check_at, self._clock.now()
        self._looking.add(server)
        try:
            async with asyncio.TaskGroup() as both:
                look = both.create_task(self._look(server, looks), name=f"look {server.spec.id}")
                guard = both.create_task(
                    self._overtake(server, planned, look), name=f"guard {server.spec.id}"
                )
                look.add_done_callback(lambda _look: guard.cancel())
        finally:
            self._looking.discard(server)
        if not look.cancelled():
            self.carry_out(look.result())

    async def _overtake(self, server: Server, planned: float, look: "asyncio.Task[Sequence[Effect]]") -> None:
        while server.next_check_at == planned:
            self._wakers[server].clear()
            await self._wakers[server].wait()
        look.cancel()

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
            case State.SUSPECT if self._clock.now() < server.examine_at:
                return self._pool.probed(server, await self._prober.probe(server.spec))
            case State.VERIFYING | State.SUSPECT | State.PAUSED | State.MISMATCHED:
                return await self._examine(server)
            case State.ACTIVE:
                turn = looks % REFRESH_EVERY
                return await self._check(server, refresh=turn == 0, remind=turn == 1)
            case State.DRAINING:
                effects = await self._check(server, refresh=False, remind=False)
                self._pool.remove_drained(server)
                return effects
            case State.GONE:
                return ()
            case _ as never:
                assert_never(never)

    async def _examine(self, server: Server) -> Sequence[Effect]:
        report, before = await asyncio.gather(self._prober.inspect(server.spec), self._figures(server))
        canary = NOT_ASKED
        answers = report.health not in (Health.DOWN, Health.REFUSED)
        if self._pool.settings.canary and answers and not report.sleeping:
            canary = await self._ask(server, report.models)
        progress = None
        if canary.fault is CanaryFault.SLOW and before is not None:
            after = await self._figures(server)
            progress = None if after is None else after > before
        return self._pool.examined(server, report, canary, progress=progress)

    async def _ask(self, server: Server, models: Mapping[str, str] | None) -> CanaryReport:
        """Send the canary: the question whose answer is known, where it is about a model of this server."""
        known, model = self._pool.settings.known_answer, next(iter(models or ()), None)
        if known is not None and known.model is not None:
            if models is None or known.model in models:
                model = known.model
            else:
                known = None
        return await self._prober.canary(server.spec, model, known)

    async def _figures(self, server: Server) -> float | None:
        """The token counters of a suspect: they move where it is only too busy for a canary."""
        if server.state is not State.SUSPECT:
            return None
        return tokens_counted(await self._prober.scrape(server.spec))

    async def _check(self, server: Server, *, refresh: bool, remind: bool) -> Sequence[Effect]:
        state = server.state
        report, canary = await asyncio.gather(
            self._timed(server, refresh=refresh), self._remind(server, remind=remind)
        )
        if server.state is not state:  # what was seen speaks of the time before that
            return ()
        told = self._pool.refreshed if refresh else self._pool.probed
        return (*told(server, report), *self._pool.reminded(server, canary))

    async def _timed(self, server: Server, *, refresh: bool) -> ProbeReport:
        look, began = self._prober.inspect if refresh else self._prober.probe, self._clock.now()
        report = await look(server.spec)
        if server.state is not State.GONE:  # else its series would come back, and stay
            self._metrics.probe_ended(server.spec.id, self._clock.now() - began)
        return report

    async def _remind(self, server: Server, *, remind: bool) -> CanaryReport:
        """Ask the known question again: an adapter may have been swapped, or memory have gone bad."""
        if not remind or self._pool.settings.known_answer is None:
            return NOT_ASKED
        return await self._ask(server, server.models)

    # Between the looks

    async def _keep_pulse(self) -> None:
        """See to what must not wait for a look that is slow, or not due: figures, stalls, sudden silence."""
        while True:
            await self._clock.sleep(PULSE_S)
            now = self._clock.now()
            for server in list(self._pool.servers.values()):
                if server.state in HOLDING:
                    self._beat(server, now)

    def _beat(self, server: Server, now: float) -> None:
        if now >= server.next_scrape_at:
            server.next_scrape_at = math.inf  # one at a time
            self._start(self._scrape(server), f"scrape {server.spec.id}")
        self.carry_out(self._pool.look_for_stall(server))
        if server not in self._looking and wants_look(server, now):
            server.next_check_at = now
            self._wakers[server].set()

    async def _scrape(self, server: Server) -> None:
        settings, asked_at = self._pool.settings, self._clock.now()
        patience_s = max(settings.probe_timeout_s, SCRAPE_SHARE * settings.stall_s)
        telemetry = await self._prober.scrape(server.spec, patience_s)
        server.next_scrape_at = max(asked_at + settings.scrape_interval_s, self._clock.now())
        if server.state in HOLDING and server.alive_since <= asked_at:
            self.carry_out(self._pool.scraped(server, telemetry, asked_at))


def _why(server: Server) -> str:
    reason = server.plain_reason
    return f"{reason}; {server.serving}" if server.state is State.ACTIVE else reason

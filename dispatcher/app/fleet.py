"""The servers of one process: found, watched and reachable, for as long as the context is open."""

import asyncio
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from os import getpid
from random import Random

import structlog

from dispatcher.app.clock import SystemClock
from dispatcher.app.sources import Membership, Source, Watched, open_sources
from dispatcher.app.tracing import open_tracer
from dispatcher.config import Config, PoolSettings
from dispatcher.descriptors import descriptors_for_requests
from dispatcher.discovery.dns import Resolver
from dispatcher.dispatch.ceiling import Ceiling
from dispatcher.dispatch.desk import Desk
from dispatcher.dispatch.live import LiveDesk
from dispatcher.dispatch.node import Node
from dispatcher.dispatch.waiting import Waiting
from dispatcher.dispatch.world import World
from dispatcher.model import NodeId
from dispatcher.pool.limits import ALL, Portion
from dispatcher.pool.monitor import Monitor
from dispatcher.pool.pool import Pool
from dispatcher.ports import Payloads, Queue, Recorder, Review, Tracer
from dispatcher.telemetry.absences import Absences
from dispatcher.telemetry.exporter import process_registry, serve_metrics
from dispatcher.telemetry.loop_lag import measure_loop_lag
from dispatcher.telemetry.metrics import Metrics
from dispatcher.vllm.prober import HttpProber
from dispatcher.vllm.transport import AiohttpTransport
from dispatcher.vllm.verdicts import judge

DESCRIPTORS_RESERVED = 768
"""Descriptors kept for journals, the database, probes and the standard streams; the rest may be requests."""
AGAIN_S = 1.0
"""When a task that has not ended is cancelled again."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The pool with everything that acts for it."""

    config: Config
    pool: Pool
    monitor: Monitor
    membership: Membership
    transport: AiohttpTransport
    clock: SystemClock
    metrics: Metrics
    tracer: Tracer | None = None

    def node(
        self,
        queue: Queue,
        payloads: Payloads,
        recorder: Recorder,
        review: Review | None = None,
        name: NodeId | None = None,
    ) -> Node:
        """A node that works on this queue with the fleet's servers. `review` may ask for better answers.

        It is named for this machine and process, unless a name is given.
        """
        config = self.config
        world = World(
            queue,
            payloads,
            recorder,
            self.transport,
            self.clock,
            self.metrics,
            wording=None if review is None else review.wording,
            tracer=self.tracer,
            log_prompts=config.telemetry.log_prompts,
        )
        ceiling = Ceiling(descriptors_for_requests(DESCRIPTORS_RESERVED))
        desk = Desk(self.pool, judge, config.dispatch, ceiling, self.metrics, self.clock.now, review)
        waiting = Waiting(config.pool.wait_for_servers_s)
        name = name or NodeId(f"{socket.gethostname()}-{getpid()}")
        return Node(name, world, desk, self.monitor, config.dispatch, config.queue, waiting)

    def live(self, node: Node) -> LiveDesk:
        """The desk of live requests, which have first refusal of the permits that jobs of this node free."""
        ceiling = node.desk.ceiling
        desk = LiveDesk(self.pool, judge, self.metrics, self.clock.now, node.permit_freed, ceiling)
        node.desk.first_refusal = desk.permit_freed
        node.desk.excused = desk.may_have_ended
        self.monitor.join(desk)
        return desk


@asynccontextmanager
async def open_metrics(config: Config) -> AsyncIterator[Metrics]:
    """The process's metrics, served where a port is set. Raises ConfigError where that cannot be bound."""
    registry = process_registry()
    port, host = config.telemetry.metrics_port, config.telemetry.metrics_host
    async with AsyncExitStack() as stack:
        if port is not None:
            await stack.enter_async_context(serve_metrics(registry, port, host))
        yield Metrics(registry)


@asynccontextmanager
async def open_fleet(
    config: Config,
    metrics: Metrics,
    *,
    resolver: Resolver | None = None,
    changing: Sequence[Source] = (),
    live_reserve: float = 0.0,
    portion: Portion = ALL,
) -> AsyncIterator[Fleet]:
    """Find the servers and begin to watch them. Raises ConfigError for a list that cannot be used.

    `resolver` looks up names in place of the system's. `changing` are sources besides the configured ones.
    `live_reserve` is the share of each server's permits that jobs leave free, and `portion` this process's
    part of all permits, where others feed the same servers.
    """
    clock = SystemClock()
    absences = Absences(clock.now)
    async with AsyncExitStack() as stack:
        sources = await stack.enter_async_context(open_sources(config, resolver, changing))
        tracer = await stack.enter_async_context(open_tracer(config.telemetry))
        transport = await stack.enter_async_context(
            AiohttpTransport(
                connect_timeout_s=config.pool.connect_timeout_s,
                absences=absences,
                trace=None if tracer is None else tracer.headers,
            )
        )
        prober = await stack.enter_async_context(_prober(config.pool, absences))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        pool = _pool(config, metrics, clock, absences, live_reserve, portion)
        monitor = Monitor(pool, prober, clock, metrics, tasks)
        membership = Membership(sources, monitor.watch)
        membership.announce()
        beating = measure_loop_lag(clock, metrics.event_loop_lagged, absences)
        keepers = [tasks.create_task(beating, name="loop lag")]
        for source in sources:
            if source.watched is not None:
                metrics.source_followed(source.name, partial(_is_faulty, source.watched))
            following = membership.follow(source, clock)
            keepers.append(tasks.create_task(following, name=f"follow {source.name}"))
        try:
            yield Fleet(config, pool, monitor, membership, transport, clock, metrics, tracer)
        finally:
            monitor.stop()
            await _end(keepers)


async def _end(tasks: Collection["asyncio.Task[None]"]) -> None:
    """Cancel them until they have ended: what a source's library waits with may swallow a cancellation.

    (aiohappyeyeballs does, where it comes just as a slower connection is given up.)
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_S)


def _is_faulty(source: Watched) -> bool:
    return source.problem is not None


def _pool(
    config: Config,
    metrics: Metrics,
    clock: SystemClock,
    absences: Absences,
    live_reserve: float,
    portion: Portion,
) -> Pool:
    prompts = config.telemetry.log_prompts
    if prompts:
        structlog.get_logger("dispatcher.pool").warning("prompts_are_logged")
    return Pool(
        config.pool,
        metrics,
        clock.now,
        Random(),  # noqa: S311  # it jitters probes
        absences,
        live_reserve=live_reserve,
        portion=portion,
        log_prompts=prompts,
    )


def _prober(settings: PoolSettings, absences: Absences) -> HttpProber:
    return HttpProber(
        probe_timeout_s=settings.probe_timeout_s,
        connect_timeout_s=settings.connect_timeout_s,
        absences=absences,
    )

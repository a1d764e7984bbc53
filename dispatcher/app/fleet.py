"""The servers of one process: found, watched and reachable, for as long as the context is open."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from os import getpid
from random import Random

from prometheus_client import CollectorRegistry

from dispatcher.app.clock import SystemClock
from dispatcher.config import Config, PoolSettings
from dispatcher.discovery.file import ServersFile
from dispatcher.discovery.static import expand_servers
from dispatcher.dispatch.ceiling import Ceiling
from dispatcher.dispatch.desk import Desk
from dispatcher.dispatch.node import Node, World
from dispatcher.dispatch.waiting import Waiting
from dispatcher.errors import ConfigError, Fault
from dispatcher.model import NodeId, ServerSpec
from dispatcher.pool.monitor import Monitor
from dispatcher.pool.pool import Pool
from dispatcher.ports import Payloads, Queue, Recorder
from dispatcher.telemetry.exporter import serve_metrics
from dispatcher.telemetry.loop_lag import measure_loop_lag
from dispatcher.telemetry.metrics import Metrics
from dispatcher.vllm.prober import HttpProber
from dispatcher.vllm.transport import AiohttpTransport
from dispatcher.vllm.verdicts import judge

DESCRIPTORS_RESERVED = 768
"""Descriptors kept for journals, the database, probes and the standard streams; the rest may be requests."""
WATCH_FILE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """The pool with everything that acts for it."""

    config: Config
    pool: Pool
    monitor: Monitor
    transport: AiohttpTransport
    clock: SystemClock
    metrics: Metrics

    def node(self, queue: Queue, payloads: Payloads, recorder: Recorder) -> Node:
        """A node that works on this queue with the fleet's servers."""
        config = self.config
        world = World(queue, payloads, recorder, self.transport, self.clock, self.metrics)
        ceiling = Ceiling(descriptors_for_requests())
        desk = Desk(self.pool, judge, config.dispatch, ceiling, self.metrics, self.clock.now)
        waiting = Waiting(config.pool.wait_for_servers_s)
        name = NodeId(f"{socket.gethostname()}-{getpid()}")
        return Node(name, world, desk, self.monitor, config.dispatch, config.queue, waiting)


@asynccontextmanager
async def open_fleet(config: Config) -> AsyncIterator[Fleet]:
    """Find the servers and begin to watch them. Raises ConfigError for a list that cannot be used."""
    specs = known_servers(config)
    registry, clock = CollectorRegistry(), SystemClock()
    metrics = Metrics(registry)
    async with AsyncExitStack() as stack:
        if config.telemetry.metrics_port is not None:
            port, host = config.telemetry.metrics_port, config.telemetry.metrics_host
            await stack.enter_async_context(serve_metrics(registry, port, host))
        transport = await stack.enter_async_context(
            AiohttpTransport(connect_timeout_s=config.pool.connect_timeout_s)
        )
        prober = await stack.enter_async_context(_prober(config.pool))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        pool = Pool(config.pool, metrics, clock.now, Random())  # noqa: S311  # it jitters probes
        monitor = Monitor(pool, prober, clock, metrics, tasks)
        monitor.watch(specs)
        keepers = [tasks.create_task(measure_loop_lag(clock, metrics.event_loop_lagged), name="loop lag")]
        if config.discovery.file is not None:
            keepers.append(tasks.create_task(_follow_file(config, monitor, clock), name="servers file"))
        try:
            yield Fleet(config, pool, monitor, transport, clock, metrics)
        finally:
            monitor.stop()
            for keeper in keepers:
                keeper.cancel()


def _prober(settings: PoolSettings) -> HttpProber:
    return HttpProber(probe_timeout_s=settings.probe_timeout_s, connect_timeout_s=settings.connect_timeout_s)


def known_servers(config: Config) -> Sequence[ServerSpec]:
    """The servers that the configuration and its file name. Raises ConfigError where there are none."""
    specs = expand_servers(config.servers, config.api_key)
    if config.discovery.file is not None:
        listed = {spec.id for spec in specs}
        specs = [*specs, *(spec for spec in _file(config).read() if spec.id not in listed)]
    elif not specs:
        raise ConfigError((Fault("servers", "must name at least one: --server URL, or --servers-file"),))
    return specs


async def _follow_file(config: Config, monitor: Monitor, clock: SystemClock) -> None:
    static = expand_servers(config.servers, config.api_key)
    listed = {spec.id for spec in static}
    async for specs in _file(config).watch(clock, WATCH_FILE_EVERY_S):
        monitor.watch([*static, *(spec for spec in specs if spec.id not in listed)])


def _file(config: Config) -> ServersFile:
    assert config.discovery.file is not None, "asked for only where one is configured"
    return ServersFile(config.discovery.file, default_api_key=config.api_key)


def descriptors_for_requests() -> int:
    """Raise this process's soft limit of descriptors to its hard one, and say how many requests may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1_048_576 if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(16, most - DESCRIPTORS_RESERVED)

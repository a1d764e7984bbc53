"""The metrics over HTTP, for a Prometheus to scrape."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Metric,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.registry import Collector

from dispatcher.errors import ConfigError, Fault

_SHUTDOWN_S = 1.0
"""A scrape that is still open at the end may take this long: the next one would have come in vain anyway."""


async def _nothing() -> None:
    """The metrics are this process's own: there is nobody to ask."""


@asynccontextmanager
async def serve_metrics(
    registry: CollectorRegistry,
    port: int,
    host: str = "127.0.0.1",
    refresh: Callable[[], Awaitable[None]] = _nothing,
) -> AsyncIterator[int]:
    """Serve `/metrics` and `/healthz` in this event loop, and give the port that was bound (0: a free one).

    `refresh` is awaited before each look at the registry.

    Raises:
        ConfigError: The port or the host cannot be bound.
    """
    runner = web.AppRunner(_application(registry, refresh), access_log=None, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        await _bind(runner, port, host)
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _application(registry: CollectorRegistry, refresh: Callable[[], Awaitable[None]]) -> web.Application:
    async def metrics(_request: web.Request) -> web.Response:
        await refresh()
        # In a thread: with a thousand servers this takes long enough to hold up sends.
        body = await asyncio.to_thread(exposition, registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    application.router.add_get("/healthz", health)
    return application


async def _bind(runner: web.AppRunner, port: int, host: str) -> None:
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise ConfigError((bind_fault(error, port, host, "telemetry.metrics_"),)) from error


def bind_fault(error: OSError, port: int, host: str, setting: str) -> Fault:
    """Why an address cannot be listened on, said of the setting: `setting` is what comes before `port`."""
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return Fault(f"{setting}host", f"{host} is no address of this machine")
    reasons = {errno.EADDRINUSE: "is in use", errno.EACCES: "may not be bound without privileges"}
    reason = reasons.get(error.errno or 0, f"cannot be bound: {error.strerror}")
    return Fault(f"{setting}port", f"{port} on {host} {reason}")


def process_registry() -> CollectorRegistry:
    """A registry that has `process_*` already: this process's memory, processor time and descriptors."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    """All series in Prometheus' text format. Blocks."""
    return generate_latest(_WithoutCreated(registry))


class _WithoutCreated(Collector):
    """A registry without the `_created` series: a timestamp beside every counter, which nobody graphs.

    The library can leave them out only for the whole process (`disable_created_metrics`).
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric

"""Which queue the service works on: its own file, or a database that outlives the machine."""

import asyncio
import importlib.metadata
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from dispatcher.app.attendance import Attendance
from dispatcher.app.extras import require_postgresql
from dispatcher.config import Config, QueueUrl
from dispatcher.model import NodeId
from dispatcher.ports import Clock
from dispatcher.queue.nodes import NodeFigures, NodeIdentity
from dispatcher.queue.sql import SqlQueue, open_queue
from dispatcher.storage.filesystem import network_filesystem


@asynccontextmanager
async def open_service_queue(
    config: Config,
    path: Path,
    clock: Clock,
    node: NodeId,
    figures: Callable[[], NodeFigures],
    displaced: Callable[[], None],
) -> AsyncIterator[SqlQueue]:
    """The queue of `queue.url`, or else the file at `path`.

    Where the storage is not shared as well, no other service works on it, and no lease is held. `figures` and
    `displaced` are as for Attendance. Raises as `open_queue` and `open_shared_queue` do, and
    StateError where another service is at work on the queue.
    """
    opened = (
        _own(config, path, clock)
        if config.queue.url is None
        else _shared(config, config.queue.url, clock, node, figures, displaced)
    )
    async with opened as queue:
        if not shares_jobs(config):
            await queue.release_all()
        yield queue


def identity_of(node: NodeId) -> NodeIdentity:
    """This process, as the others know it."""
    return NodeIdentity(node, socket.gethostname(), os.getpid(), importlib.metadata.version("dispatcher"))


def shares_jobs(config: Config) -> bool:
    """Whether other services may work on the same jobs: all that they need is where each can reach it."""
    return config.queue.url is not None and config.storage.shared is not None


@asynccontextmanager
async def _own(config: Config, path: Path, clock: Clock) -> AsyncIterator[SqlQueue]:
    kind = await asyncio.to_thread(network_filesystem, path.parent)
    async with open_queue(
        path, clock, lease_s=config.queue.lease_s, network_filesystem=kind is not None
    ) as queue:
        yield queue


@asynccontextmanager
async def _shared(
    config: Config,
    url: QueueUrl,
    clock: Clock,
    node: NodeId,
    figures: Callable[[], NodeFigures],
    displaced: Callable[[], None],
) -> AsyncIterator[SqlQueue]:
    require_postgresql()
    from dispatcher.queue.shared import open_shared_queue  # noqa: PLC0415  # an extra, which most do without

    identity = identity_of(node)
    async with open_shared_queue(url, clock, lease_s=config.queue.lease_s) as queue:
        attendance = Attendance(queue.nodes, identity, clock, config.queue.lease_s, figures, displaced)
        async with attendance.among_others() if shares_jobs(config) else attendance.alone():
            yield queue

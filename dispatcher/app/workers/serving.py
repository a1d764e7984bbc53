"""A worker's life in its own process."""

import socket
import sys
from collections.abc import Callable

import uvloop

from dispatcher.app.workers.channel import Channel
from dispatcher.app.workers.messages import FromParent, FromWorker, Order
from dispatcher.app.workers.settings import unpacked
from dispatcher.app.workers.worker import Worker
from dispatcher.garbage import collect_rarely, spare_loaded
from dispatcher.telemetry.logging import configure_logging


def serve(descriptor: int, orphaned: Callable[[], None]) -> None:
    """Work for the parent at the other end of a socket, to the end."""
    collect_rarely()
    spare_loaded()
    uvloop.run(_work(socket.socket(fileno=descriptor), orphaned))


async def _work(end: socket.socket, orphaned: Callable[[], None]) -> None:
    channel: Channel[FromWorker, FromParent] = await Channel.over(end, FromParent)
    order = await channel.hear()
    if not isinstance(order, Order):
        orphaned()
        return
    configure_logging("json", unpacked(order.config).telemetry.log_level, sys.stderr)
    await Worker(order, channel, orphaned).run()
    channel.close()

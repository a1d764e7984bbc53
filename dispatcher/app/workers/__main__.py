"""A worker's process, as `process.py` starts it: `python -m dispatcher.app.workers DESCRIPTOR PARENT`."""

import ctypes
import os
import signal
import socket
import sys

import uvloop

from dispatcher.app.workers.channel import Channel
from dispatcher.app.workers.messages import FromParent, FromWorker, Order
from dispatcher.app.workers.settings import unpacked
from dispatcher.app.workers.worker import Worker
from dispatcher.garbage import collect_rarely, spare_loaded
from dispatcher.telemetry.logging import configure_logging

PR_SET_PDEATHSIG = 1
"""prctl(2)."""
ORPHANED = 3
"""The exit status of a worker whose parent is gone."""


def main() -> None:
    """Work for the parent at the other end of the descriptor, and end with it."""
    descriptor, parent = map(int, sys.argv[1:])
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before that
        sys.exit(ORPHANED)
    collect_rarely()
    spare_loaded()
    uvloop.run(_work(socket.socket(fileno=descriptor)))


async def _work(end: socket.socket) -> None:
    channel: Channel[FromWorker, FromParent] = await Channel.over(end, FromParent)
    order = await channel.hear()
    if not isinstance(order, Order):
        sys.exit(ORPHANED)
    configure_logging("json", unpacked(order.config).telemetry.log_level, sys.stderr)
    await Worker(order, channel, lambda: os._exit(ORPHANED)).run()
    channel.close()


if __name__ == "__main__":
    main()

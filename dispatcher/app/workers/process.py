"""A worker's process: started, listened to, ended."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from dispatcher.app.workers.channel import Channel
from dispatcher.app.workers.messages import FromParent, FromWorker, Order

LINE_BYTES_MAX = 2**20
"""A longer line of a worker's log is passed on in pieces."""
PROGRAM = Path(__file__).with_name("program.py")
STOPPING = (signal.SIGINT, signal.SIGTERM)
"""What a terminal or a scheduler sends to a whole group: workers obey their parent alone."""


class WorkerProcess:
    """One worker's process, and the lines to it."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        channel: Channel[FromParent, FromWorker],
        log_lines: "asyncio.Task[None]",
    ) -> None:
        self.channel = channel
        self.pid = process.pid
        self._process = process
        self._log_lines = log_lines

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    async def ended(self) -> int:
        """Kill it, should it live, and give its exit status once it is dead: negative for a signal."""
        self._process.kill()
        self.channel.close()
        status = await asyncio.to_thread(self._process.wait)
        await self._log_lines
        return status


async def start_process(order: Order, lock_descriptor: int) -> WorkerProcess:
    """Start a worker and give it its order. Call it in the main thread: the worker ends with that.

    `lock_descriptor` holds the state directory's lock, so that nobody takes it before the worker is dead.
    Raises OSError where no process can be started.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs, _held_off():
            process = _popen(theirs.fileno(), lock_descriptor)
    except BaseException:
        ours.close()
        raise
    channel: Channel[FromParent, FromWorker] = await Channel.over(ours, FromWorker)
    channel.tell(order)
    reader = await _reader(process)
    lines = asyncio.create_task(_pass_on(reader, order.number + 1), name=f"log of worker {order.number + 1}")
    return WorkerProcess(process, channel, lines)


def _popen(descriptor: int, lock_descriptor: int) -> "subprocess.Popen[bytes]":
    """Without the working directory in its path, where a user may have files of any name."""
    ours = str(PROGRAM.parents[3])
    path = os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", str(PROGRAM), str(descriptor), str(os.getpid())]
    return subprocess.Popen(  # noqa: S603  # our own program
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(descriptor, lock_descriptor),
        env={**os.environ, "PYTHONPATH": path},
    )


@contextmanager
def _held_off() -> Iterator[None]:
    """What is started within never gets the signals that stop: the mask is inherited, and at once."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def _reader(process: "subprocess.Popen[bytes]") -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, process.stdout)
    return reader


async def _pass_on(reader: asyncio.StreamReader, worker: int) -> None:
    """Write what the worker logs into our own log, until it is dead."""
    while line := await _line(reader):
        log_line(line, worker)


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil()
    except asyncio.IncompleteReadError as end:
        return end.partial
    except asyncio.LimitOverrunError:
        return await reader.read(LINE_BYTES_MAX)


def log_line(line: bytes, worker: int) -> None:
    """Log a line of a worker's: an event as that event, anything else (a traceback, say) as what it said."""
    log = structlog.get_logger("dispatcher.worker")
    with suppress(msgspec.DecodeError):
        fields = msgspec.json.decode(line, type=dict[str, Any])
        event, level = fields.pop("event", None), fields.pop("level", "")
        fields.pop("timestamp", None)
        if event is not None and level in {"debug", "info", "warning", "error", "critical"}:
            getattr(log, level)(event, **{**fields, "worker": worker})
            return
    if text := line.decode(errors="replace").rstrip():
        log.warning("worker_said", worker=worker, text=text)

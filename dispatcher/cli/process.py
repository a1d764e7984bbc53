"""A command as a process: its event loop, its signals, and its end."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from threading import Timer
from typing import Any, Final

import uvloop

from dispatcher.cli.exits import Exit, exit_for, tell
from dispatcher.errors import DispatcherError

ENDING_S: Final = 10.0
"""How long a command that has ended may take to leave. The event loop waits for every name lookup that it
gave up, one after the other, and for every thread: a silent name server or file server would hold it for
minutes, with nothing left to do."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run_command(prepare: Callable[[], Coroutine[Any, Any, Exit]]) -> Exit:
    """Prepare a command, run it in an event loop of its own, and give the exit status.

    Says what is wrong where it cannot be prepared, or fails.
    """
    try:
        command = prepare()
    except DispatcherError as error:
        return _told(error)
    leaving: list[Timer] = []
    try:
        return uvloop.run(_run(command, leaving))
    finally:
        for timer in leaving:
            timer.cancel()


async def _run(command: Coroutine[Any, Any, Exit], leaving: list[Timer]) -> Exit:
    try:
        status = await command
    except DispatcherError as error:
        status = _told(error)
    with suppress(OSError):
        sys.stdout.flush()
    timer = Timer(ENDING_S, os._exit, (status,))
    timer.daemon = True
    timer.start()
    leaving.append(timer)
    return status


def _told(error: DispatcherError) -> Exit:
    tell(error)
    return exit_for(error)


@contextmanager
def stopped_by_signals(request_stop: Callable[[], bool]) -> Iterator[None]:
    """Ask for the end on SIGTERM and SIGINT, in the running loop; where that is answered by False, end now.

    Afterwards both end the process as they do by default: nobody is left who could be asked.
    """
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, _stop, request_stop)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)


def _stop(request_stop: Callable[[], bool]) -> None:
    if not request_stop():
        sys.stderr.write("dispatcher: stopped; run the same command to go on\n")
        os._exit(Exit.RESUMABLE)  # a thread that waits for a pipe would hold up any gentler end

"""The registrar as a process: its signals and its log."""

import asyncio
import signal
import sys
from typing import Literal

import httpx2
import uvloop

from dispatcher.app.clock import SystemClock
from dispatcher.app.registrar import TIMEOUT_S, Registrant, Registrar, check_registrant
from dispatcher.cli.exits import Exit, exit_for, tell
from dispatcher.errors import DispatcherError
from dispatcher.telemetry.logging import configure_logging


def run_registrar(registrant: Registrant, log_format: Literal["console", "json"]) -> Exit:
    """Keep the server registered until a signal."""
    configure_logging(log_format, "info", sys.stderr)
    try:
        uvloop.run(_run(check_registrant(registrant)))
    except DispatcherError as error:
        tell(error)
        return exit_for(error)
    return Exit.DONE


async def _run(registrant: Registrant) -> None:
    async with httpx2.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False) as client:
        registrar, loop = Registrar(registrant, client, SystemClock()), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, registrar.request_stop)
        await registrar.run()

"""The registrar as a process: its signals and its log."""

import sys
from typing import Literal

import httpx2

from dispatcher.app.clock import SystemClock
from dispatcher.app.registrar import TIMEOUT_S, Registrant, Registrar, check_registrant
from dispatcher.cli.exits import Exit
from dispatcher.cli.process import run_command, stopped_by_signals
from dispatcher.telemetry.logging import configure_logging


def run_registrar(registrant: Registrant, log_format: Literal["console", "json"]) -> Exit:
    """Keep the server registered until a signal."""
    configure_logging(log_format, "info", sys.stderr)
    return run_command(lambda: _run(check_registrant(registrant)))


async def _run(registrant: Registrant) -> Exit:
    async with httpx2.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False) as client:
        registrar = Registrar(registrant, client, SystemClock())
        with stopped_by_signals(registrar.request_stop):
            await registrar.run()
    return Exit.DONE

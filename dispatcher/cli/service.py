"""The service as a process: its signals and its log."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop

from dispatcher.app.service import Service
from dispatcher.cli.exits import Exit, exit_for, tell
from dispatcher.config import Config, load_config
from dispatcher.errors import DispatcherError
from dispatcher.garbage import spare_loaded
from dispatcher.telemetry.logging import configure_logging


def run_service(config_path: Path | None, overrides: Mapping[str, Any]) -> Exit:
    """Serve with these settings until a signal; 0 after an orderly end."""
    spare_loaded()
    try:
        config = load_config(config_path, overrides, os.environ)
        uvloop.run(_run(config))
    except DispatcherError as error:
        tell(error)
        return exit_for(error)
    return Exit.DONE


async def _run(config: Config) -> None:
    configure_logging(config.telemetry.log_format, config.telemetry.log_level, sys.stderr)
    service, loop = Service(config), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.request_stop)
    await service.run()

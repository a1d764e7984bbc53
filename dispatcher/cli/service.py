"""The service as a process: its signals and its log."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dispatcher.app.service import Service
from dispatcher.cli.exits import Exit
from dispatcher.cli.process import run_command, stopped_by_signals
from dispatcher.config import Config, load_config
from dispatcher.garbage import spare_loaded
from dispatcher.telemetry.logging import configure_logging


def run_service(config_path: Path | None, overrides: Mapping[str, Any]) -> Exit:
    """Serve with these settings until a signal; 0 after an orderly end."""
    spare_loaded()
    return run_command(lambda: _run(load_config(config_path, overrides, os.environ)))


async def _run(config: Config) -> Exit:
    configure_logging(config.telemetry.log_format, config.telemetry.log_level, sys.stderr)
    service = Service(config)
    with stopped_by_signals(service.request_stop):
        await service.run()
    return Exit.DONE

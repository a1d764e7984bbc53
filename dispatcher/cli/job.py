"""A job shown while it runs: its progress, its signals, its summary."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar

from rich.console import Console

from dispatcher.app.requests_file import RequestsFile
from dispatcher.app.run import JobRun
from dispatcher.app.snapshot import Snapshot
from dispatcher.cli import summary as summaries
from dispatcher.cli.exits import Exit
from dispatcher.cli.process import run_command, stopped_by_signals
from dispatcher.cli.view import live_view, logged_progress
from dispatcher.config import Config, load_config
from dispatcher.garbage import spare_loaded
from dispatcher.storage.source import given_stdin
from dispatcher.telemetry.logging import configure_logging


def run_job(config_path: Path | None, overrides: Mapping[str, Any], input_name: str) -> Exit:
    """Run one job with these settings, say what is wrong where it cannot be, and give the exit status."""
    spare_loaded()
    return run_command(lambda: _run(load_config(config_path, overrides, os.environ), input_name))


async def _run(config: Config, input_name: str) -> Exit:
    job = JobRun(config, RequestsFile(config, input_name, given_stdin()))
    return await show(job, summaries.lines, summaries.log)


class Ended(Protocol):
    """How a run ended."""

    @property
    def exit_code(self) -> int:
        """The exit status of the command."""


S = TypeVar("S", bound=Ended)
S_co = TypeVar("S_co", bound=Ended, covariant=True)


class Run(Protocol[S_co]):
    """What can be run and shown: see JobRun."""

    config: Config

    async def execute(self) -> S_co:
        """Run it to its end."""

    def snapshot(self) -> Snapshot:
        """It at this moment."""

    def request_stop(self) -> bool:
        """End it soon. False where it will not end of itself."""


async def show(run: Run[S], lines: Callable[[S], Iterable[str]], log: Callable[[S], None]) -> Exit:
    """Run it to its end, or until a signal, and show it meanwhile.

    `lines` are its summary for a person, `log` writes the one for a machine.
    """
    config, console = run.config, Console(stderr=True)
    _log_to(config, sys.stderr)
    with stopped_by_signals(run.request_stop):
        async with _shown(config, run, console):
            summary = await run.execute()
        with suppress(BrokenPipeError):  # who has stopped reading has not made any row fail
            if config.telemetry.log_format == "json":
                log(summary)
            elif not config.run.quiet:
                for line in lines(summary):
                    console.print(line, highlight=False, markup=False, soft_wrap=True)
    return Exit(summary.exit_code)


def _log_to(config: Config, stream: TextIO) -> None:
    level = "warning" if config.run.quiet else config.telemetry.log_level
    configure_logging(config.telemetry.log_format, level, stream)


def _shown(config: Config, job: Run[Ended], console: Console) -> AbstractAsyncContextManager[None]:
    if config.run.quiet:
        return nullcontext()
    if console.is_terminal and config.telemetry.log_format == "console":
        return live_view(job.snapshot, console, lambda stream: _log_to(config, stream))
    return logged_progress(job.snapshot)

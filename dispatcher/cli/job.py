"""A job shown while it runs: its progress, its signals, its summary."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar

import uvloop
from rich.console import Console

from dispatcher.app.requests_file import RequestsFile
from dispatcher.app.run import JobRun
from dispatcher.app.snapshot import Snapshot
from dispatcher.cli import summary as summaries
from dispatcher.cli.exits import Exit, exit_for, tell
from dispatcher.cli.view import live_view, logged_progress
from dispatcher.config import Config, load_config
from dispatcher.errors import DispatcherError
from dispatcher.garbage import spare_loaded
from dispatcher.storage.source import given_stdin
from dispatcher.telemetry.logging import configure_logging


def run_job(config_path: Path | None, overrides: Mapping[str, Any], input_name: str) -> Exit:
    """Run one job with these settings, say what is wrong where it cannot be, and give the exit status."""
    spare_loaded()
    try:
        config = load_config(config_path, overrides, os.environ)
        return uvloop.run(_run(config, input_name))
    except DispatcherError as error:
        tell(error)
        return exit_for(error)


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
    _stop_on_signals(run)
    async with _shown(config, run, console):
        summary = await run.execute()
    with suppress(BrokenPipeError):  # who has stopped reading has not made any row fail
        if config.telemetry.log_format == "json":
            log(summary)
        elif not config.run.quiet:
            for line in lines(summary):
                console.print(line, highlight=False, markup=False, soft_wrap=True)
    return Exit(summary.exit_code)


def _stop_on_signals(job: Run[Ended]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, job)


def _stop(job: Run[Ended]) -> None:
    if not job.request_stop():
        sys.stderr.write("dispatcher: stopped; run the same command to go on\n")
        os._exit(Exit.RESUMABLE)  # a thread that waits for a pipe would hold up any gentler end


def _log_to(config: Config, stream: TextIO) -> None:
    level = "warning" if config.run.quiet else config.telemetry.log_level
    configure_logging(config.telemetry.log_format, level, stream)


def _shown(config: Config, job: Run[Ended], console: Console) -> AbstractAsyncContextManager[None]:
    if config.run.quiet:
        return nullcontext()
    if console.is_terminal and config.telemetry.log_format == "console":
        return live_view(job.snapshot, console, lambda stream: _log_to(config, stream))
    return logged_progress(job.snapshot)

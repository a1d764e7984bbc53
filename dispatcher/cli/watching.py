"""A service's job, followed to its end: a live line on a terminal, a line every ten seconds elsewhere."""

import json as jsonlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from dispatcher.cli.connection import Connection, ServiceError
from dispatcher.cli.exits import Exit, tell
from dispatcher.cli.job_lines import ENDED, exit_of, job_line, problem_lines

LOOK_EVERY_S = 1.0
LINE_EVERY_S = 10.0
SILENCE_S_MAX = 120.0
"""A service that restarts is waited for so long."""

Job = Mapping[str, Any]


def watch_job(service: Connection, job_id: str, *, json: bool) -> Exit:
    """Show a job until it has ended, or the user has seen enough. Raises ServiceError."""
    show = _json_lines if json else _live if sys.stdout.isatty() else _plain_lines
    last = service.get(f"/jobs/{job_id}")
    try:
        for job in show(_looks(service, last)):
            last = job
    except KeyboardInterrupt:
        sys.stderr.write(f"dispatcher: the job goes on; `dispatcher watch {job_id}` follows it again\n")
        return Exit.RESUMABLE
    if not json:
        for line in problem_lines(last):
            sys.stdout.write(f"{line}\n")
    return exit_of(last)


def _looks(service: Connection, job: Job) -> Iterator[Job]:
    """The job again and again, until it has ended."""
    heard_at, silent = time.monotonic(), False
    while True:
        yield job
        if job["status"] in ENDED:
            return
        time.sleep(LOOK_EVERY_S)
        try:
            job = service.get(f"/jobs/{job['id']}")
            heard_at, silent = time.monotonic(), False
        except ServiceError as error:
            if time.monotonic() - heard_at > SILENCE_S_MAX:
                raise
            if not silent:
                tell(error)
                sys.stderr.write(f"dispatcher: waiting for the service, for {SILENCE_S_MAX:g} s at most\n")
            silent = True


def _json_lines(looks: Iterator[Job]) -> Iterator[Job]:
    shown = None
    for job in looks:
        line = jsonlib.dumps(job)
        if line != shown:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
        shown = line
        yield job


def _plain_lines(looks: Iterator[Job]) -> Iterator[Job]:
    status, due_at = None, float("-inf")
    for job in looks:
        if job["status"] != status or time.monotonic() >= due_at:
            sys.stdout.write(f"{job_line(job)}\n")
            sys.stdout.flush()
            status, due_at = job["status"], time.monotonic() + LINE_EVERY_S
        yield job


def _live(looks: Iterator[Job]) -> Iterator[Job]:
    with Live(console=Console(), refresh_per_second=2) as live:
        for job in looks:
            live.update(_drawn(job))
            yield job


def _drawn(job: Job) -> Table:
    counts = job["counts"]
    drawn = Table.grid()
    drawn.add_row(
        ProgressBar(total=max(1, counts["total"]), completed=counts["succeeded"] + counts["failed"])
    )
    drawn.add_row(job_line(job))
    return drawn

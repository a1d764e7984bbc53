"""The demo, shown."""

import sys
import tempfile
from pathlib import Path

from dispatcher.app.demo import DIES_AT, ROWS, SERVERS, open_demo
from dispatcher.cli import summary
from dispatcher.cli.exits import Exit
from dispatcher.cli.figures import count
from dispatcher.cli.job import show
from dispatcher.cli.process import run_command
from dispatcher.cli.verify import verdict
from dispatcher.results.verify import verify


def demonstrate(directory: Path) -> Exit:
    """Run the demo with its files in this directory, and give the exit status."""
    return run_command(lambda: _demo(directory))


async def _demo(directory: Path) -> Exit:
    _say(f"{SERVERS} fake vLLM servers, {count(ROWS)} requests; one server is killed at {DIES_AT:.0%}.")
    async with open_demo(directory) as demo:
        status = await show(demo.job, summary.lines, summary.log)
    if status is Exit.RESUMABLE:
        return status
    files = demo.job.files
    errors = files.errors if files.errors.exists() else None
    with tempfile.TemporaryDirectory(prefix="dispatcher-") as work:
        report = verify(demo.input, files.output, errors, work_dir=Path(work))
    _say(verdict(report))
    _say(f"Have a look: {demo.input} and {files.output}")
    return status if report.ok else Exit.FAILED_ROWS


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()

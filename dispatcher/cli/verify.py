"""`dispatcher verify`."""

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from dispatcher.cli.exits import Exit, tell
from dispatcher.cli.figures import count
from dispatcher.errors import DispatcherError
from dispatcher.results import verify as results


def verify(
    input: Annotated[Path, typer.Argument(help="The requests: JSON lines, .gz or .zst.")],  # noqa: A002
    output: Annotated[Path, typer.Argument(help="The successes.")],
    errors: Annotated[Path | None, typer.Argument(help="The failures, where there are any.")] = None,
) -> None:
    """Prove that every request has exactly one outcome, in order and in strict JSON.

    Exit status 0: it is so; 1: it is not, and what is wrong is named; 2: the files cannot be read.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="dispatcher-") as work:
            report = results.verify(input, output, errors, work_dir=Path(work))
    except DispatcherError as error:
        tell(error)
        raise typer.Exit(Exit.USAGE) from None
    for problem in report.problems:
        sys.stdout.write(f"{problem}\n")
    sys.stdout.write(f"{verdict(report)}\n")
    raise typer.Exit(Exit.DONE if report.ok else Exit.FAILED_ROWS)


def verdict(report: results.VerifyReport) -> str:
    """The report in one line."""
    succeeded, failed = count(report.succeeded), count(report.failed)
    outcomes = f"{count(report.requests)} requests, {succeeded} succeeded, {failed} failed"
    if report.ok:
        return f"verified: {outcomes}; each has exactly one outcome, in input order, in strict JSON"
    return (
        f"NOT verified: {outcomes}; {count(report.missing)} without an outcome, "
        f"{count(report.repeated)} outcomes too many, {count(report.unknown)} of no request, "
        f"{count(report.malformed)} malformed lines"
        + (f", {report.disordered} files out of order" if report.disordered else "")
    )

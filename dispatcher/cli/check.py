"""`dispatcher check`."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from dispatcher.cli.exits import Exit, tell
from dispatcher.cli.figures import count
from dispatcher.errors import DispatcherError, InputError
from dispatcher.ingest.findings import ScanReport
from dispatcher.ingest.scan import scan
from dispatcher.storage.source import given_stdin, prepare_source


def check(
    input: Annotated[str, typer.Argument(help="JSON lines of requests; .gz, .zst, or - for standard input.")],  # noqa: A002
) -> None:
    """Check an input without sending anything: every line that is no request is named.

    Exit status 0: it can be run; 2: it cannot, and why.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="dispatcher-") as work:
            source = prepare_source(input, Path(work), given_stdin())
            report = scan(source.path, Path(work), _ignore, skip_invalid=True)
    except DispatcherError as error:
        tell(error)
        raise typer.Exit(Exit.USAGE) from None
    for line in lines(report):
        sys.stdout.write(f"{line}\n")
    if report.rejected:
        lines_are = "line is no request" if report.rejected == 1 else "lines are no requests"
        tell(InputError(f"{count(report.rejected)} {lines_are}:", report.faults, report.rejected))
    raise typer.Exit(Exit.USAGE if report.rejected else Exit.DONE)


def lines(report: ScanReport) -> Iterator[str]:
    """The report for a person."""
    yield f"{count(report.rows)} requests in {count(report.lines)} lines ({count(report.blank)} blank ones)"
    for (url, model), number in sorted(report.by_model.items(), key=lambda item: -item[1]):
        yield f"  {url:<28} {model or '(no model)':<40} {count(number):>12}"


def _ignore(_: object) -> None:
    """Shards are cut, and not needed."""

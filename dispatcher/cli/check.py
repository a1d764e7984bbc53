"""`dispatcher check`."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from dispatcher.cli import options
from dispatcher.cli.exits import Exit, tell
from dispatcher.cli.figures import count
from dispatcher.errors import ConfigError, DispatcherError, Fault, InputError
from dispatcher.ingest.findings import ScanReport
from dispatcher.ingest.scan import scan
from dispatcher.storage.source import given_stdin, prepare_source


def check(
    input: Annotated[  # noqa: A002
        str | None, typer.Argument(help="JSON lines of requests; .gz, .zst, or - for standard input.")
    ] = None,
    config: options.ConfigFile = None,
) -> None:
    """Check an input, or settings, without sending anything: whatever is wrong is named.

    Exit status 0: they can be used; 2: they cannot, and why.
    """
    if input is None and config is None:
        tell(ConfigError((Fault("check", "needs an INPUT, or --config PATH"),)))
        raise typer.Exit(Exit.USAGE)
    fine = [_settings_are_fine(config) if config else True, _input_is_fine(input) if input else True]
    raise typer.Exit(Exit.DONE if all(fine) else Exit.USAGE)


def _settings_are_fine(config: Path) -> bool:
    from dispatcher.config import load_config  # noqa: PLC0415  # `--help` need not wait for it

    try:
        load_config(config, {}, os.environ)
    except DispatcherError as error:
        tell(error)
        return False
    sys.stdout.write(f"{config}: every setting can be used\n")
    return True


def _input_is_fine(name: str) -> bool:
    try:
        with tempfile.TemporaryDirectory(prefix="dispatcher-") as work:
            source = prepare_source(name, Path(work), given_stdin())
            report = scan(source.path, Path(work), _ignore, skip_invalid=True)
    except DispatcherError as error:
        tell(error)
        return False
    for line in lines(report):
        sys.stdout.write(f"{line}\n")
    if report.rejected:
        lines_are = "line is no request" if report.rejected == 1 else "lines are no requests"
        tell(InputError(f"{count(report.rejected)} {lines_are}:", report.faults, report.rejected))
    return not report.rejected


def lines(report: ScanReport) -> Iterator[str]:
    """The report for a person."""
    yield f"{count(report.rows)} requests in {count(report.lines)} lines ({count(report.blank)} blank ones)"
    for (url, model), number in sorted(report.by_model.items(), key=lambda item: -item[1]):
        yield f"  {url:<28} {model or '(no model)':<40} {count(number):>12}"


def _ignore(_: object) -> None:
    """Shards are cut, and not needed."""

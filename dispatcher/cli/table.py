"""A table's annotation, run and shown."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatcher.app.extras import require_tables
from dispatcher.cli import summary
from dispatcher.cli.exits import Exit, exit_for, tell
from dispatcher.cli.figures import count
from dispatcher.cli.job import show
from dispatcher.cli.process import run_command
from dispatcher.config import Config, load_config
from dispatcher.errors import DispatcherError
from dispatcher.garbage import spare_loaded
from dispatcher.storage.source import given_stdin
from dispatcher.telemetry.logging import configure_logging

if TYPE_CHECKING:
    from dispatcher.annotate.proof import Proof
    from dispatcher.app.preview import Preview

SHOWN_MAX = 2000
"""Characters of a message that is not text, an image say."""


def annotate_table(config_path: Path | None, overrides: Mapping[str, Any], input_name: str) -> Exit:
    """Annotate a table with these settings, or say what is wrong, and give the exit status."""
    spare_loaded()
    return run_command(lambda: _annotate(_config_of(config_path, overrides), input_name))


def preview_table(config_path: Path | None, overrides: Mapping[str, Any], input_name: str, rows: int) -> Exit:
    """Print what is asked about the first rows and, with servers, what is answered. Writes no file."""
    return run_command(lambda: _preview(_config_of(config_path, overrides), input_name, rows))


def verify_table(config_path: Path | None, overrides: Mapping[str, Any], input_name: str) -> Exit:
    """Compare a finished table with its input and print what is found."""
    try:
        config = _config_of(config_path, overrides)
        from dispatcher.app.table import Table  # noqa: PLC0415  # it needs an extra

        proof = Table(config, input_name).prove()
    except DispatcherError as error:
        tell(error)
        return exit_for(error)
    sys.stdout.write("".join(f"{line}\n" for line in _verdict(proof)))
    return Exit.DONE if proof.ok else Exit.FAILED_ROWS


def _config_of(config_path: Path | None, overrides: Mapping[str, Any]) -> Config:
    config = load_config(config_path, overrides, os.environ)
    require_tables()
    return config


def _verdict(proof: "Proof") -> Iterator[str]:
    counts = f"{count(proof.succeeded)} answers and {count(proof.failed)} errors"
    dropped = f"; {count(proof.dropped)} rows were dropped" if proof.dropped else ""
    if proof.ok:
        yield f"{count(proof.rows)} rows, each with exactly one outcome, in order: {counts}{dropped}"
        return
    yield f"{count(proof.rows)} rows, {counts}{dropped}; {count(proof.problem_count)} things are wrong:"
    yield from (f"  {problem}" for problem in proof.problems)


async def _preview(config: Config, input_name: str, rows: int) -> Exit:
    from dispatcher.app.preview import preview  # noqa: PLC0415  # it needs an extra

    configure_logging(config.telemetry.log_format, "warning", sys.stderr)
    failed = False
    for shown in await preview(config, input_name, rows, given_stdin()):
        failed |= any(asked.failed for asked in shown.asked)
        sys.stdout.write("\n".join(_lines(shown)) + "\n\n")
    return Exit.FAILED_ROWS if failed else Exit.DONE


def _lines(shown: "Preview") -> Iterator[str]:
    yield f"--- {shown.file}, row {shown.number}"
    for asked in shown.asked:
        if asked.step:
            yield f"-- step {asked.step}"
        for message in asked.messages:
            content = message.get("content")
            yield f"[{message['role']}] {content if isinstance(content, str) else _brief(content)}"
        for name, value in (asked.answer or {}).items():
            if value is not None:
                yield f"{name}: {value if isinstance(value, str) else _brief(value)}"


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


async def _annotate(config: Config, input_name: str) -> Exit:
    from dispatcher.app.steps import StepsRun, annotation  # noqa: PLC0415  # it needs an extra
    from dispatcher.app.table_places import Streams  # noqa: PLC0415  # it needs an extra

    run = annotation(config, input_name, streams=Streams(given_stdin(), sys.stdout.buffer))
    if isinstance(run, StepsRun):
        return await show(run, summary.lines_of_steps, summary.log_of_steps)
    return await show(run, summary.lines, summary.log)

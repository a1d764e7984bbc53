"""The files of a run: where they are, whose they are, and whether they are in each other's way."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dispatcher.config import Config
from dispatcher.errors import ConfigError, Fault, StateError, StorageError
from dispatcher.results.disk import partial_of
from dispatcher.results.finalise import check_outputs_writable
from dispatcher.storage.source import STDIN


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Where a run reads and writes."""

    input: str
    """A path, or `-` for standard input."""
    output: Path
    errors: Path
    state: Path
    rejected: Path
    """Lines that are no requests, with `--on-invalid skip`."""
    output_name: str | None = None
    """What the output is called where it is no file."""

    @property
    def journals(self) -> Path:
        """The folder of the shards' journals."""
        return self.state / "journal"


def job_files(config: Config, input_name: str) -> JobFiles:
    """Where a run of this input reads and writes. Raises ConfigError where no output is named."""
    output = config.run.output
    if output is None:
        raise ConfigError((Fault("run.output", "must name the output file: -o out.jsonl"),))
    if isinstance(output, str):
        raise ConfigError((Fault("run.output", f"must be a file, not {output}"),))
    stem = output.with_suffix("") if output.suffix in (".jsonl", ".json", ".ndjson") else output
    return JobFiles(
        input=input_name,
        output=output,
        errors=config.run.errors or stem.with_name(f"{stem.name}.errors.jsonl"),
        state=config.run.state_dir or output.with_name(f"{output.name}.state"),
        rejected=stem.with_name(f"{stem.name}.rejected.jsonl"),
    )


def check_files(files: JobFiles, *, skip: bool) -> None:
    """Tell before hours of work what would be lost after them. `skip`: rejected lines are written, too.

    Raises ConfigError where files are in each other's way or cannot be written, and StateError where one
    that would be replaced is not the dispatcher's.
    """
    try:
        check_outputs_writable(files.output, files.errors)
        faults = tuple(_overlaps(files, skip=skip))
    except (StorageError, RuntimeError, OSError) as error:  # a link to itself among them
        raise ConfigError((Fault("run.output", str(error)),)) from error
    if faults:
        raise ConfigError(faults)
    for path in (files.output, files.errors):
        mark_of(path)


def mark_of(path: Path) -> str | None:
    """The mark of the answers that an output or error file holds; None where it is absent or empty.

    Raises StateError for a file that is not the dispatcher's: it must not be replaced.
    """
    if not path.exists():
        return None
    with path.open("rb") as file:
        start = file.read(128)
    if not start:
        return None
    if (found := _OUR_LINE.match(start)) is None:
        raise StateError(
            f"{path} exists already, and is no file of the dispatcher's. Move it away, or choose another name"
        )
    return found[1].decode()


def answers_mark(sha256: str | None, settings: Mapping[str, Any]) -> str:
    """What stands in the ids of all answers to this input under these settings, so that they can be told."""
    told = {name: value for name, value in settings.items() if name != "run.on_invalid"}
    return hashlib.sha256(json.dumps([sha256, told], sort_keys=True).encode()).hexdigest()[:12]


_OUR_LINE = re.compile(rb'\{"id":"batch_req_([0-9a-f]{12})_[0-9]+"')


def _overlaps(files: JobFiles, *, skip: bool) -> Iterator[Fault]:
    """Files of a run that would overwrite one another, or go with the state directory."""
    taken: dict[Path, str] = {} if files.input == STDIN else {Path(files.input).resolve(): "the input"}
    state = files.state.resolve()
    written_to = [("run.output", files.output), ("run.errors", files.errors)]
    if skip:
        written_to.append(("run.on_invalid", files.rejected))
    for setting, path in written_to:
        place = path.resolve()
        for written in (place, partial_of(place)):
            if written in taken:
                yield Fault(setting, f"must not be written to {written}, which is {taken[written]}")
            taken.setdefault(written, f"{setting}'s file")
        if place == state or state in place.parents:
            yield Fault(setting, f"must not be written into the state directory {files.state}")

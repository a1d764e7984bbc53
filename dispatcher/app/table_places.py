"""Where `annotate` reads and writes, as it is told: files, object stores, standard input and output."""

from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from dispatcher.annotate.finding import TableFiles, find_files
from dispatcher.annotate.formats import Format, format_of, known_suffixes
from dispatcher.annotate.places import LocalPlace, Place, RemotePlace, StandardOutput
from dispatcher.annotate.table_files import LocalFile, is_remote
from dispatcher.app.files import JobFiles, job_files
from dispatcher.config import AnnotateSettings, Config
from dispatcher.errors import ConfigError, Fault
from dispatcher.storage.source import STDIN

STDOUT = Path("-")
SPOOL = "input.table"
"""What standard input held, in the state directory, until it has been read."""
ASIDE = "output.table"
"""What goes to standard output, until it is whole."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Standard input and output, where `-` may stand for them."""

    stdin: BinaryIO | None = None
    stdout: BinaryIO | None = None


def table_files(config: Config, input_name: str) -> JobFiles:
    """Where an annotation reads and writes. Failed rows stay in their table, so that there are no errors.

    Raises ConfigError where no output is named.
    """
    output = config.run.output
    local: Path | None = None
    if isinstance(output, str):
        local = Path(PurePosixPath(output).name)  # its state is here, and not there
    else:
        local = Path("stdout") if output == STDOUT else output
    run = config.run.model_copy(update={"output": local})
    files = job_files(config.model_copy(update={"run": run}), input_name)
    told = None if local is output else str(output)
    return replace(files, errors=files.output, output_name="standard output" if told == "-" else told)


def place_of(config: Config, files: JobFiles, streams: Streams) -> Place:
    """Where the table is put. Raises ConfigError where that cannot be."""
    output = config.run.output
    if isinstance(output, str):
        if not is_remote(output):
            raise ConfigError((Fault("run.output", f"{output}: must be a file, or s3://, gs:// or az://"),))
        return RemotePlace(output)
    if output != STDOUT:
        return LocalPlace(files.output)
    return StandardOutput(streams.stdout, files.state / ASIDE)


def source_of(config: Config, files: JobFiles, home: Path) -> TableFiles:
    """The files of the input; standard input's is in the state directory `home`, once it is there.

    Raises InputError where there are none.
    """
    kind = kind_of(config)
    if files.input == STDIN:
        return TableFiles(
            "standard input", (LocalFile(home / SPOOL, "standard input"),), kind or Format.JSONL
        )
    return find_files(files.input, kind)


def kind_of(config: Config) -> Format | None:
    """What the input is, as it is told; None where its name says so."""
    name = config.annotate.input_format
    return None if name is None else Format.named(name)


def output_format(settings: AnnotateSettings, output: Path | str) -> Format:
    """As it is told, or by the output's suffix. Raises ConfigError where that is unknown."""
    if settings.output_format is not None:
        return Format.named(settings.output_format)
    if output == STDOUT:
        return Format.JSONL
    found = format_of(PurePosixPath(str(output)))
    if found is None:
        message = f"{output}: must end in one of {known_suffixes()}, or --output-format must say what it is"
        raise ConfigError((Fault("run.output", message),))
    return found

"""The work of `dispatcher annotate`: a table in, the same table with more columns out."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dispatcher.annotate.faults import RowError
from dispatcher.annotate.finished import finished_tally
from dispatcher.annotate.formats import Format, TableFiles, find_files
from dispatcher.annotate.joining import Output, write_table
from dispatcher.annotate.payloads import TablePayloads
from dispatcher.annotate.proof import Proof, prove
from dispatcher.annotate.staged import StagedTable
from dispatcher.annotate.staging import Selection, stage
from dispatcher.annotate.templates import Prompt
from dispatcher.app.annotator import Annotator
from dispatcher.app.files import JobFiles, answers_mark, job_files
from dispatcher.app.table_settings import conditions_of, output_format
from dispatcher.app.work import Found, Prepared
from dispatcher.config import Config
from dispatcher.errors import ConfigError, Fault, InputError, StateError, StorageError
from dispatcher.jsonl import CHUNK_BYTES
from dispatcher.model import Job, Shard, Tally
from dispatcher.results.disk import partial_of
from dispatcher.results.finalise import check_writable
from dispatcher.storage.filesystem import storage_errors


class Table:
    """A `Work`.

    Args:
        config: Every setting.
        input_name: A file, a directory, or a pattern.

    Raises ConfigError for settings, prompts and schemas that cannot be used, and InputError where there is
    no table of that name.
    """

    def __init__(self, config: Config, input_name: str) -> None:
        files = job_files(config, input_name)
        self.files: JobFiles = replace(files, errors=files.output)  # failed rows stay in their table
        self._config = config
        self.source = find_files(input_name)
        self.annotator = Annotator.of(config)
        self._conditions = conditions_of(config.annotate)
        output, layout = self.files.output, self.annotator.layout
        self._output = Output(output, output_format(output), layout, config.annotate.drop_invalid)
        self.staged = StagedTable(self.files.state / "table")

    @property
    def settings(self) -> Mapping[str, Any]:
        """See Work. Texts of files stand there as hashes."""
        of_files = {"prompt", "system", "answer_schema"}
        harmless = {"validate_retries"}
        recipe = self.annotator.recipe
        annotate = self._config.annotate.model_dump(mode="json", exclude=of_files | harmless)
        return {
            "run.model": self.annotator.model,
            "results.provenance": self._config.results.provenance,
            "annotate.output": self._output.format.value,
            "annotate.prompt": _hash(recipe.prompt),
            "annotate.system": _hash(recipe.system),
            "annotate.answer_schema": _told(msgspec.json.encode(self.annotator.kind.constraint).decode()),
            **{f"annotate.{name}": value for name, value in annotate.items()},
        }

    def check(self) -> None:
        """See Work."""
        output, state = self.files.output.resolve(), self.files.state.resolve()
        try:
            check_writable(self.files.output)
        except (StorageError, OSError) as error:
            raise ConfigError((Fault("run.output", str(error)),)) from error
        inputs = {path.resolve() for path in self.source.paths}
        for written in (output, partial_of(output)):
            if written in inputs:
                raise ConfigError((Fault("run.output", f"must not be written to {written}, an input"),))
        if state in output.parents or state == output:
            message = f"must not be written into the state directory {self.files.state}"
            raise ConfigError((Fault("run.output", message),))

    def prove(self) -> Proof:
        """Compare the finished table with its input. Raises InputError where one of them cannot be read."""
        output = find_files(str(self.files.output))
        selection, layout = self.selection(), self._output.layout
        may_drop = self._config.annotate.drop_invalid
        try:
            return prove(self.source, output, selection, layout, may_drop=may_drop)
        except RowError as error:
            raise InputError(f"{self.files.input}: {error.message}") from error

    def found(self) -> Found | None:
        """See Work. A table without its state is never replaced; it may say itself that it is this one."""
        output, has_state = self.files.output, (self.files.state / "queue.sqlite").exists()
        if not output.exists() or has_state or self._config.run.restart:
            return None
        mark = answers_mark(hash_of(self.source), self.settings)
        tally = finished_tally(output, self._output.format, mark, self._output.layout.error_code)
        if tally is None or (tally.failed and self._config.run.retry_failed):
            raise StateError(f"{output} exists already. Give --restart to replace it, or another output")
        return Found(tally.succeeded + tally.failed, tally)

    def prepare(self, earlier: Mapping[str, Any] | None, check_stopped: Callable[[], None]) -> Prepared:
        """See Work."""
        return PreparedTable(self, earlier, check_stopped)

    def has_outputs(self, mark: str | None, tally: Tally) -> bool:  # noqa: ARG002  # there is one output
        """See Work."""
        return self.files.output.exists()

    def write(self, job: Job, shards: Iterable[Shard], prepared: Prepared) -> None:  # noqa: ARG002  # it is ours
        """See Work."""
        write_table(job, shards, self.files.journals, self.staged, self._output)

    @property
    def payloads(self) -> TablePayloads:
        """The staged rows as requests."""
        annotator = self.annotator
        return TablePayloads(self.staged, annotator.recipe, annotator.model, self._config.annotate.id_column)

    def selection(self) -> Selection:
        """Which rows and columns count."""
        settings = self._config.annotate
        return Selection(
            conditions=self._conditions,
            limit=settings.limit,
            columns=settings.columns,
            id_column=settings.id_column,
            new_columns=self._output.layout.names,
            typed=self._output.format in (Format.PARQUET, Format.ARROW),
            shard_size=self._config.queue.shard_size,
        )


class PreparedTable:
    """A `Prepared`. Raises StateError where the files are not those that `earlier` tells of."""

    source: Path | None = None

    def __init__(
        self, table: Table, earlier: Mapping[str, Any] | None, check_stopped: Callable[[], None]
    ) -> None:
        self.payloads = table.payloads
        self.review = table.annotator.review
        self.sha256: str | None = None
        self._table = table
        self._check_stopped = check_stopped
        self._files = _stat(table.source)
        if earlier is not None:
            self.sha256 = earlier["sha256"]
            if self._files != earlier["files"] and hash_of(table.source, check_stopped) != self.sha256:
                raise StateError(
                    f"{table.files.input}: not the table that this state directory was made for; "
                    "give the original one, another --state-dir, or --restart to throw its answers away"
                )

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """See Prepared."""
        return {"files": self._files, "sha256": self.sha256}

    def ingest(
        self,
        work_dir: Path,
        add_shards: Callable[[list[Shard]], None],
        reject: Callable[[list[int]], None],  # noqa: ARG002  # a row is good, or the table is refused
    ) -> None:
        """See Prepared."""
        table = self._table
        self.sha256 = hash_of(table.source, self._check_stopped)
        stage(table.source, table.annotator.recipe, table.selection(), table.staged, work_dir, add_shards)


def hash_of(source: TableFiles, check_stopped: Callable[[], None] = lambda: None) -> str:
    """The SHA-256 of all files' bytes, in order. Raises StorageError where they cannot be read."""
    digest = hashlib.sha256()
    for path in source.paths:
        with storage_errors(path, "cannot be read"), path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                check_stopped()
                digest.update(chunk)
    return digest.hexdigest()


def _stat(source: TableFiles) -> list[list[Any]]:
    found = [(path, path.stat()) for path in source.paths]
    return [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in found]


def _hash(prompt: Prompt | None) -> str | None:
    return None if prompt is None else _told(prompt.text)


def _told(text: str) -> str:
    """A text that may be long, or nobody's business, so that another one can be told from it."""
    return f"a text with the hash {hashlib.sha256(text.encode()).hexdigest()[:12]}"

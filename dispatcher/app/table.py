"""The work of `dispatcher annotate`: a table in, the same table with more columns out."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dispatcher.annotate.faults import RowError
from dispatcher.annotate.finished import finished_tally, has_mark
from dispatcher.annotate.formats import Format, TableFiles, find_files
from dispatcher.annotate.joining import Answered, Output, write_table
from dispatcher.annotate.payloads import TablePayloads
from dispatcher.annotate.proof import Proof, prove
from dispatcher.annotate.recipe import Recipes
from dispatcher.annotate.staged import StagedTable
from dispatcher.annotate.staging import Selection, stage
from dispatcher.annotate.templates import Prompt
from dispatcher.app.files import JobFiles, answers_mark, job_files
from dispatcher.app.questions import Question, questions_of
from dispatcher.app.state import STEPS
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
    """What is annotated: a table, one question about its rows or several steps, and the table to write.

    A `Work` where it is one question; `dispatcher.app.steps` makes several works of it where it is more.

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
        self.questions = questions_of(config)
        self.annotator = self.questions[0].annotator
        self._conditions = conditions_of(config.annotate)
        layouts = [question.annotator.layout for question in self.questions]
        output = self.files.output
        self.output = Output(output, output_format(output), layouts, config.annotate.drop_invalid)
        first = self.questions[0].name
        state = self.files.state
        self.staged = StagedTable((state / STEPS / first if first else state) / "table")

    @property
    def has_steps(self) -> bool:
        """Whether it is annotated in steps, be it a single one."""
        return bool(self.questions[0].name)

    @property
    def settings(self) -> Mapping[str, Any]:
        """See Work."""
        if not self.has_steps:
            return self.settings_of(self.questions[0])
        return {question.name: self.settings_of(question) for question in self.questions}

    def settings_of(self, question: Question) -> Mapping[str, Any]:
        """Those of one question. Texts of files stand there as hashes."""
        of_files = {"prompt", "system", "answer_schema"}
        harmless = {"validate_retries", "steps"}
        recipe, kind = question.annotator.recipe, question.annotator.kind
        annotate = question.config.annotate.model_dump(mode="json", exclude=of_files | harmless)
        return {
            "run.model": question.annotator.model,
            "results.provenance": self._config.results.provenance,
            "annotate.output": self.output.format.value,
            "annotate.prompt": _hash(recipe.prompt),
            "annotate.system": _hash(recipe.system),
            "annotate.answer_schema": _told(msgspec.json.encode(kind.constraint).decode()),
            **{f"annotate.{name}": value for name, value in annotate.items()},
        }

    def check(self) -> None:
        """See Work."""
        output, state = self.files.output.resolve(), self.files.state.resolve()
        if (state / ("queue.sqlite" if self.has_steps else STEPS)).exists() and not self._config.run.restart:
            kind = "without steps" if self.has_steps else "of steps"
            raise StateError(f"{state} holds a run {kind}; give --restart to throw its answers away")
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
        may_drop = self._config.annotate.drop_invalid
        try:
            return prove(self.source, output, self.selection(), self.output.layouts, may_drop=may_drop)
        except RowError as error:
            raise InputError(f"{self.files.input}: {error.message}") from error

    def found(self) -> Found | None:
        """See Work. A table without its state is never replaced; it may say itself that it is this one."""
        output, state = self.files.output, self.files.state
        has_state = (state / "queue.sqlite").exists() or (state / STEPS).exists()
        if not output.exists() or has_state or self._config.run.restart:
            return None
        tally = self._finished(self.mark(hash_of(self.source)))
        if tally is None or (tally.failed and self._config.run.retry_failed):
            raise StateError(f"{output} exists already. Give --restart to replace it, or another output")
        return Found(tally.succeeded + tally.failed, tally)

    def _finished(self, mark: str) -> Tally | None:
        """What the output's rows add up to; None where it is not the one of this mark."""
        path = self.files.output
        if has_mark(path, mark):
            with suppress(InputError):
                proof = self.prove()
                return Tally(proof.succeeded, proof.failed, errors=proof.errors) if proof.ok else None
        errors = [layout.error_code for layout in self.output.layouts]
        return finished_tally(path, self.output.format, mark, errors)

    def mark(self, sha256: str | None) -> str:
        """What an output says of itself that answers the input of this hash."""
        return answers_mark(sha256, self.settings)

    def prepare(self, earlier: Mapping[str, Any] | None, check_stopped: Callable[[], None]) -> Prepared:
        """See Work."""
        return PreparedTable(self, earlier, check_stopped)

    def has_outputs(self, mark: str | None, tally: Tally) -> bool:  # noqa: ARG002  # there is one output
        """See Work."""
        return self.files.output.exists()

    def write(self, job: Job, shards: Iterable[Shard], prepared: Prepared) -> None:
        """See Work."""
        answered = [Answered(job, self.files.journals, self.annotator.layout)]
        write_table(shards, self.staged, answered, self.output, self.mark(prepared.sha256))

    def payloads(self, question: Question, earlier: Sequence[Answered] = ()) -> TablePayloads:
        """The staged rows as requests of one question, once the `earlier` ones are answered."""
        recipe, model = question.annotator.recipe, question.annotator.model
        return TablePayloads(self.staged, recipe, model, self._config.annotate.id_column, earlier)

    def asking(self) -> Recipes:
        """What all questions ask of a row."""
        return Recipes(
            [(each.name, each.annotator.recipe, each.annotator.layout.names) for each in self.questions]
        )

    def selection(self) -> Selection:
        """Which rows and columns count."""
        settings = self._config.annotate
        return Selection(
            conditions=self._conditions,
            limit=settings.limit,
            columns=settings.columns,
            id_column=settings.id_column,
            new_columns=self.output.names,
            typed=self.output.format in (Format.PARQUET, Format.ARROW),
            shard_size=self._config.queue.shard_size,
        )


class PreparedTable:
    """A `Prepared`. Raises StateError where the files are not those that `earlier` tells of."""

    def __init__(
        self, table: Table, earlier: Mapping[str, Any] | None, check_stopped: Callable[[], None]
    ) -> None:
        self.payloads = table.payloads(table.questions[0])
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

        def add(shards: list[Shard]) -> None:
            if table.has_steps:
                table.staged.keep_shards(shards)
            add_shards(shards)

        self.sha256 = hash_of(table.source, self._check_stopped)
        stage(table.source, table.asking(), table.selection(), table.staged, work_dir, add)


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

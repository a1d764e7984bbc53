"""The work of `dispatcher annotate`: a table in, the same table with more columns out."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dispatcher.annotate.faults import RowError
from dispatcher.annotate.finding import TableFiles
from dispatcher.annotate.finished import finished_tally, has_mark
from dispatcher.annotate.joining import Answered, Output, write_table
from dispatcher.annotate.payloads import TablePayloads
from dispatcher.annotate.proof import Proof, prove
from dispatcher.annotate.recipe import Recipes
from dispatcher.annotate.staged import StagedTable
from dispatcher.annotate.staging import Selection, stage
from dispatcher.annotate.templates import Prompt
from dispatcher.app.files import JobFiles, answers_mark
from dispatcher.app.questions import Question, Valid, questions_of
from dispatcher.app.state import STEPS
from dispatcher.app.table_places import Streams, output_format, place_of, source_of, table_files
from dispatcher.app.table_settings import conditions_of
from dispatcher.app.work import Found, Prepared
from dispatcher.config import Config
from dispatcher.errors import ConfigError, Fault, InputError, StateError, StorageError
from dispatcher.jsonl import CHUNK_BYTES
from dispatcher.model import Job, Shard, Tally
from dispatcher.results.disk import partial_of
from dispatcher.storage.filesystem import replacing, storage_errors
from dispatcher.storage.source import STDIN


class Table:
    """What is annotated: a table, one question about its rows or several steps, and the table to write.

    A `Work` where it is one question; `dispatcher.app.steps` makes several works of it where it is more.

    Args:
        config: Every setting.
        input_name: A file, a directory, a pattern, a URL, or `-`.
        valid: Given each answer, where there are no steps.
        streams: What `-` stands for; None: nothing.
        is_staged: Whether all that is needed has been read from the files: they are not looked for.

    Raises ConfigError for settings, prompts and schemas that cannot be used, and InputError where there is
    no table of that name.
    """

    def __init__(
        self,
        config: Config,
        input_name: str,
        valid: Valid | None = None,
        streams: Streams | None = None,
        *,
        is_staged: bool = False,
    ) -> None:
        self.files: JobFiles = table_files(config, input_name)
        self.streams = streams or Streams()
        self._config = config
        self.questions = questions_of(config, valid)
        first, state = self.questions[0].name, self.files.state
        home = state / STEPS / first if first else state
        self.staged = StagedTable(home / "table")
        self._source = None if is_staged else source_of(config, self.files, home)
        self.annotator = self.questions[0].annotator
        self._conditions = conditions_of(config.annotate)
        layouts = [question.annotator.layout for question in self.questions]
        assert config.run.output is not None, "it is named"
        kind = output_format(config.annotate, config.run.output)
        place = place_of(config, self.files, self.streams)
        self.output = Output(place, kind, layouts, config.annotate.drop_invalid)

    @property
    def source(self) -> TableFiles:
        """Its files."""
        assert self._source is not None, "it is staged, and not read again"
        return self._source

    @property
    def has_steps(self) -> bool:
        """Whether it is annotated in steps, be it a single one."""
        return bool(self.questions[0].name)

    @property
    def is_piped(self) -> bool:
        """Whether the input is read once, and gone."""
        return self.files.input == STDIN

    @property
    def settings(self) -> Mapping[str, Any]:
        """See Work."""
        if not self.has_steps:
            return self.settings_of(self.questions[0])
        return {question.name: self.settings_of(question) for question in self.questions}

    def settings_of(self, question: Question) -> Mapping[str, Any]:
        """Those of one question. Texts of files stand there as hashes."""
        of_files = {"prompt", "system", "answer_schema"}
        harmless = {"validate_retries", "steps", "output_format"}
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
        state = self.files.state.resolve()
        if (state / ("queue.sqlite" if self.has_steps else STEPS)).exists() and not self._config.run.restart:
            kind = "without steps" if self.has_steps else "of steps"
            raise StateError(f"{state} holds a run {kind}; give --restart to throw its answers away")
        try:
            self.output.place.check()
        except (StorageError, OSError) as error:
            raise ConfigError((Fault("run.output", str(error)),)) from error
        self._refuse_overlaps(state)

    def _refuse_overlaps(self, state: Path) -> None:
        written = self.output.place.file
        if written is None:
            return
        if written.local is None:
            places, inputs = {written.name}, {file.name for file in self.source.files}
        else:
            output = written.local.resolve()
            places = {str(output), str(partial_of(output))}
            inputs = {str(file.local.resolve()) for file in self.source.files if file.local is not None}
            if state in output.parents or state == output:
                message = f"must not be written into the state directory {self.files.state}"
                raise ConfigError((Fault("run.output", message),))
        if taken := places & inputs:
            raise ConfigError((Fault("run.output", f"must not be written to {taken.pop()}, an input"),))

    def prove(self) -> Proof:
        """Compare the finished table with its input. Raises InputError where one of them cannot be read."""
        if self.is_piped or self.output.place.file is None:
            raise InputError("standard input and output can be read only once: name files to compare")
        output = TableFiles(self.output.place.name, (self.output.place.file,), self.output.format)
        may_drop = self._config.annotate.drop_invalid
        try:
            return prove(self.source, output, self.selection(), self.output.layouts, may_drop=may_drop)
        except RowError as error:
            raise InputError(f"{self.files.input}: {error.message}") from error

    def found(self) -> Found | None:
        """See Work. A table without its state is never replaced; it may say itself that it is this one."""
        place, state = self.output.place, self.files.state
        has_state = (state / "queue.sqlite").exists() or (state / STEPS).exists()
        if self._config.run.restart or has_state or not place.exists():
            return None
        tally = None if self.is_piped else self._finished(self.mark(hash_of(self.source)))
        if tally is None or (tally.failed and self._config.run.retry_failed):
            raise StateError(f"{place.name} exists already. Give --restart to replace it, or another output")
        return Found(tally.succeeded + tally.failed, tally)

    def _finished(self, mark: str) -> Tally | None:
        """What the output's rows add up to; None where it is not the one of this mark."""
        place = self.output.place
        if has_mark(place, mark):
            with suppress(InputError):
                proof = self.prove()
                return Tally(proof.succeeded, proof.failed, errors=proof.errors) if proof.ok else None
        errors = [layout.error_code for layout in self.output.layouts]
        return finished_tally(place, self.output.format, mark, errors)

    def mark(self, sha256: str | None) -> str:
        """What an output says of itself that answers the input of this hash."""
        return answers_mark(sha256, self.settings)

    def prepare(self, earlier: Mapping[str, Any] | None, check_stopped: Callable[[], None]) -> Prepared:
        """See Work."""
        return PreparedTable(self, earlier, check_stopped)

    def has_outputs(self, mark: str | None, tally: Tally) -> bool:  # noqa: ARG002  # there is one output
        """See Work."""
        return self.output.place.exists()

    def write(self, job: Job, shards: Iterable[Shard], prepared: Prepared) -> None:
        """See Work."""
        answered = [Answered(job, self.files.journals, self.annotator.layout)]
        write_table(shards, self.staged, answered, self.output, self.mark(prepared.sha256))

    @property
    def payloads(self) -> TablePayloads:
        """The staged rows as requests, of the first question."""
        return self.payloads_of(self.questions[0])

    def payloads_of(self, question: Question, earlier: Sequence[Answered] = ()) -> TablePayloads:
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
            output=self.output.format,
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
        if table.is_piped and earlier is None:
            _spool(table, check_stopped)
        self._files = ["-"] if table.is_piped else [file.stamp() for file in table.source.files]
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
        if table.is_piped:
            _spooled(table).unlink()


def hash_of(source: TableFiles, check_stopped: Callable[[], None] = lambda: None) -> str:
    """The SHA-256 of all files' bytes, in order; of what is elsewhere, of its version: reading costs money.

    Raises StorageError where they cannot be read.
    """
    digest = hashlib.sha256()
    for file in source.files:
        if file.local is None:
            digest.update(msgspec.json.encode(file.stamp()))
            continue
        with storage_errors(file.local, "cannot be read"), file.open() as opened:
            while chunk := opened.read(CHUNK_BYTES):
                check_stopped()
                digest.update(chunk)
    return digest.hexdigest()


def _spool(table: Table, check_stopped: Callable[[], None]) -> None:
    """Keep what is piped in until it is staged: it is read twice."""
    stdin = table.streams.stdin
    if stdin is None or not (chunk := stdin.read(CHUNK_BYTES)):
        raise InputError("standard input is empty, and no earlier run has kept one; name a file")
    with replacing(_spooled(table)) as file:
        while chunk:
            check_stopped()
            file.write(chunk)
            chunk = stdin.read(CHUNK_BYTES)


def _spooled(table: Table) -> Path:
    path = table.source.files[0].local
    assert path is not None, "it is kept on this machine"
    return path


def _hash(prompt: Prompt | None) -> str | None:
    return None if prompt is None else _told(prompt.text)


def _told(text: str) -> str:
    """A text that may be long, or nobody's business, so that another one can be told from it."""
    return f"a text with the hash {hashlib.sha256(text.encode()).hexdigest()[:12]}"

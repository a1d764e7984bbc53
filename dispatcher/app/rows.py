"""Rows annotated from Python: prompts as texts, schemas as mappings, tables as anything that has rows."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from dispatcher.annotate.answers import AnswerKind
from dispatcher.annotate.finding import find_files
from dispatcher.annotate.formats import Format
from dispatcher.annotate.pieces import Row, rows_of
from dispatcher.annotate.recipe import Recipe
from dispatcher.annotate.staging import pieces
from dispatcher.annotate.templates import Prompt
from dispatcher.app.annotator import Annotator
from dispatcher.app.fleet import Fleet
from dispatcher.app.table_places import kind_of
from dispatcher.app.table_settings import answer_kind, options_of, structured
from dispatcher.config import Config
from dispatcher.errors import ConfigError, Fault, InputError


@runtime_checkable
class ArrowStream(Protocol):
    """A table in memory, by Arrow's PyCapsule interface: pyarrow, pandas 2.2, polars and others have it."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """An Arrow C stream of its rows."""


Rows = ArrowStream | str | Path | Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about each row, beside the settings of the section `annotate`."""

    prompt: str | None
    system: str | None
    schema: Mapping[str, Any] | None
    valid: Callable[[Any], object] | None


async def annotated(
    fleet: Fleet, config: Config, rows: Rows, question: Question
) -> AsyncGenerator[Row, None]:
    """Rows with their answers, as they are ready. Raises ConfigError and InputError."""
    if config.annotate.steps:
        raise ConfigError((Fault("annotate.steps", "several steps are for annotate_table alone"),))
    if ignored := [name for name in OF_A_TABLE if getattr(config.annotate, name)]:
        message = "is for annotate_table alone: choose among the rows before they are given, or after"
        raise ConfigError(tuple(Fault(f"annotate.{name}", message) for name in ignored))
    if question.schema is not None and config.annotate.labels:
        raise ConfigError((Fault("schema", "must not be set together with labels"),))
    kind = answer_kind(config.annotate) if question.schema is None else structured(question.schema, "schema")
    annotator = Annotator.of(config, _recipe(config, question, kind), kind, question.valid)
    async with aclosing(annotator.annotated(fleet, _each(rows, kind_of(config)))) as answered:
        async for row in answered:
            yield row


def _recipe(config: Config, question: Question, kind: AnswerKind) -> Recipe:
    column = config.annotate.messages_column
    if (question.prompt is None) == (column is None):
        raise ConfigError((Fault("prompt", "must be given, or else messages_column"),))
    return Recipe(
        prompt=_prompt(question.prompt, "prompt"),
        system=_prompt(question.system, "system"),
        messages_column=column,
        image_columns=config.annotate.image_columns,
        options=options_of(config, kind),
    )


def _prompt(text: str | None, name: str) -> Prompt | None:
    return None if text is None else Prompt(text, name, name)


OF_A_TABLE = ("id_column", "where", "limit", "columns", "drop_invalid", "output_format")
"""Settings that mean nothing to a stream of rows."""


async def _each(rows: Rows, kind: Format | None) -> AsyncIterator[Row]:
    if isinstance(rows, str | Path):
        for piece in pieces(find_files(str(rows), kind), 64):
            for row in piece.rows if piece.rows is not None else rows_of(piece.batch):
                yield row
    elif isinstance(rows, ArrowStream):
        for batch in pa.RecordBatchReader.from_stream(rows):
            for row in rows_of(batch):
                yield row
    elif isinstance(rows, AsyncIterable):
        async for given in rows:
            yield _row(given)
    else:
        for given in rows:
            yield _row(given)


def _row(given: object) -> Row:
    if not isinstance(given, Mapping):
        raise InputError(f"rows: each must be a mapping of columns, got {type(given).__name__}")
    return dict(given)

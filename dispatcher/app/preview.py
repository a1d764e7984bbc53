"""`annotate --preview`: what would be asked about the first rows, and, with servers, what is answered."""

import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from dispatcher.annotate.conditions import all_met
from dispatcher.annotate.faults import RowError, table_error
from dispatcher.annotate.finding import TableFiles, find_files
from dispatcher.annotate.formats import Format
from dispatcher.annotate.pieces import Row, rows_of
from dispatcher.annotate.staging import pieces
from dispatcher.annotate.table_files import LocalFile
from dispatcher.app.fleet import open_fleet, open_metrics
from dispatcher.app.questions import Question, questions_of
from dispatcher.app.sources import check_sources, has_sources
from dispatcher.app.table_places import kind_of
from dispatcher.app.table_settings import conditions_of
from dispatcher.config import Config
from dispatcher.errors import InputError
from dispatcher.storage.source import STDIN

PLACE = "\0place"
"""A column of ours that no table has: it tells the rows apart when their answers come."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked about a row, in one step."""

    step: str
    """Empty where there are no steps."""
    messages: Sequence[Any]
    answer: Row | None = None
    """The answers' columns; None where there are no servers to ask."""
    failed: bool = False
    """Whether it was asked in vain."""


@dataclass(frozen=True, slots=True)
class Preview:
    """One row of a table with what is asked about it."""

    file: str
    number: int
    row: Row
    """Its columns, those of its answers among them."""
    asked: list[Asked] = field(default_factory=list)


async def preview(
    config: Config, input_name: str, count: int, stdin: BinaryIO | None = None
) -> list[Preview]:
    """The first `count` rows that meet the conditions. Raises ConfigError and InputError as a run does.

    Without servers there are no answers, and so no prompts of steps behind the first.
    """
    questions = questions_of(config)
    with _source(config, input_name, stdin) as source:
        rows = [Preview(*each) for each in itertools.islice(_rows(config, source), count)]
    for number, question in enumerate(questions):
        askable = [row for row in rows if not _lacks(row, question, questions[:number])]
        prompts = [_asked(question, row) for row in askable]
        if not has_sources(question.config):
            for row, prompt in zip(askable, prompts, strict=True):
                row.asked.append(prompt)
            break
        await _answer(question, askable, prompts)
    return rows


async def _answer(question: Question, rows: Sequence[Preview], prompts: Sequence[Asked]) -> None:
    """Ask a question about the rows, and add its columns to them."""
    config, layout = question.config, question.annotator.layout
    check_sources(config)
    async with open_metrics(config) as metrics, open_fleet(config, metrics) as fleet:
        numbered = _each([{**each.row, PLACE: place} for place, each in enumerate(rows)])
        async for row in question.annotator.annotated(fleet, numbered):
            place = row[PLACE]
            answer = {name: row[name] for name in layout.names}
            failed = row[layout.error_code] is not None
            rows[place].row.update(answer)
            rows[place].asked.append(replace(prompts[place], answer=answer, failed=failed))


def _lacks(row: Preview, question: Question, earlier: Sequence[Question]) -> bool:
    """Whether the question needs an answer about the row that there is not."""
    recipe = question.annotator.recipe
    return any(
        recipe.looks_at(each.annotator.layout.answers)
        and row.row.get(each.annotator.layout.error_code, "not asked") is not None
        for each in earlier
    )


@contextmanager
def _source(config: Config, input_name: str, stdin: BinaryIO | None) -> Iterator[TableFiles]:
    kind = kind_of(config)
    if input_name != STDIN:
        yield find_files(input_name, kind)
        return
    if stdin is None:
        raise InputError("standard input is empty; name a file")
    with tempfile.NamedTemporaryFile(prefix="dispatcher-") as file:
        shutil.copyfileobj(stdin, file)
        file.flush()
        yield TableFiles(
            "standard input", (LocalFile(Path(file.name), "standard input"),), kind or Format.JSONL
        )


def _rows(config: Config, source: TableFiles) -> Iterator[tuple[str, int, Row]]:
    conditions = conditions_of(config.annotate)
    for piece in pieces(source, 16):
        rows = piece.rows if piece.rows is not None else rows_of(piece.batch)
        for number, row in zip(piece.numbers, rows, strict=True):
            try:
                if all_met(conditions, row):
                    yield piece.file, number, row
            except RowError as error:
                raise table_error(piece.file, error.message, number, error.column) from error


def _asked(question: Question, row: Preview) -> Asked:
    try:
        body = msgspec.json.decode(question.annotator.recipe.body(row.row))
    except RowError as error:
        raise table_error(row.file, error.message, row.number, error.column) from error
    return Asked(question.name, body["messages"])


async def _each(rows: Sequence[Row]) -> AsyncIterator[Row]:
    for row in rows:
        yield row

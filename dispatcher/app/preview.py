"""`annotate --preview`: what would be asked about the first rows, and, with servers, what is answered."""

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from dispatcher.annotate.conditions import all_met
from dispatcher.annotate.faults import RowError, table_error
from dispatcher.annotate.formats import find_files
from dispatcher.annotate.pieces import Row, rows_of
from dispatcher.annotate.staging import pieces
from dispatcher.app.annotator import Annotator
from dispatcher.app.fleet import open_fleet, open_metrics
from dispatcher.app.sources import check_sources, has_sources
from dispatcher.app.table_settings import conditions_of
from dispatcher.config import Config

PLACE = "\0place"
"""A column of ours that no table has: it tells the rows apart when their answers come."""


@dataclass(frozen=True, slots=True)
class Preview:
    """One row of a table with what is asked about it."""

    file: str
    number: int
    messages: Sequence[Any]
    answer: Row | None = None
    """The answers' columns; None where there are no servers to ask."""
    failed: bool = False
    """Whether it was asked about in vain."""


async def preview(config: Config, input_name: str, count: int) -> list[Preview]:
    """The first `count` rows that meet the conditions. Raises ConfigError and InputError as a run does."""
    annotator = Annotator.of(config)
    rows = list(itertools.islice(_rows(config, input_name), count))
    shown = [_asked(annotator, file, number, row) for file, number, row in rows]
    if not has_sources(config):
        return shown
    check_sources(config)
    answers: dict[int, Row] = {}
    async with open_metrics(config) as metrics, open_fleet(config, metrics) as fleet:
        numbered = _each([{**row, PLACE: number} for number, (_, _, row) in enumerate(rows)])
        async for row in annotator.annotated(fleet, numbered):
            answers[row[PLACE]] = {name: row[name] for name in annotator.layout.names}
    code = annotator.layout.error_code
    return [
        replace(each, answer=answers[place], failed=answers[place][code] is not None)
        for place, each in enumerate(shown)
    ]


def _rows(config: Config, input_name: str) -> Iterator[tuple[str, int, Row]]:
    conditions = conditions_of(config.annotate)
    for piece in pieces(find_files(input_name), 16):
        rows = piece.rows if piece.rows is not None else rows_of(piece.batch)
        for number, row in zip(piece.numbers, rows, strict=True):
            try:
                if all_met(conditions, row):
                    yield piece.file, number, row
            except RowError as error:
                raise table_error(piece.file, error.message, number, error.column) from error


def _asked(annotator: Annotator, file: str, number: int, row: Row) -> Preview:
    try:
        body = msgspec.json.decode(annotator.recipe.body(row))
    except RowError as error:
        raise table_error(file, error.message, number, error.column) from error
    return Preview(file, number, body["messages"])


async def _each(rows: Sequence[Row]) -> AsyncIterator[Row]:
    for row in rows:
        yield row

"""Whether an output table has each row of its input once, in order, unchanged, and with one outcome."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dispatcher.annotate.cells import cell_text
from dispatcher.annotate.conditions import all_met
from dispatcher.annotate.faults import FAULTS_LISTED, place
from dispatcher.annotate.finding import TableFiles
from dispatcher.annotate.formats import Format
from dispatcher.annotate.layout import Layout
from dispatcher.annotate.pieces import Row, rows_of
from dispatcher.annotate.staging import Selection, pieces

ROWS_AT_ONCE = 256
_END: tuple[str, Row] = ("", {})


@dataclass(slots=True)
class Proof:
    """What was found in both tables."""

    rows: int = 0
    """Of the input, that count."""
    succeeded: int = 0
    failed: int = 0
    dropped: int = 0
    """Rows of the input that are not in the output, where that may be."""
    errors: Counter[str] = field(default_factory=Counter)
    """Failed rows by error code: of several steps, the first that has failed."""
    problems: list[str] = field(default_factory=list)
    """The first 20."""
    problem_count: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.problem_count == 0

    def wrong(self, problem: str) -> None:
        """Keep what is wrong."""
        self.problem_count += 1
        if len(self.problems) < FAULTS_LISTED:
            self.problems.append(problem)


def prove(
    source: TableFiles, output: TableFiles, selection: Selection, layouts: Sequence[Layout], *, may_drop: bool
) -> Proof:
    """Compare a table with its input, row by row. Blocks; memory holds a few hundred rows of each.

    `layouts` are the answers' columns, of each step. `may_drop` says whether rows without a valid answer may
    be missing. Raises InputError where one of the two cannot be read; and where the input's rows cannot be
    told by the conditions, RowError.
    """
    proof = Proof()
    expected, found = _chosen(source, selection), _placed(output)
    comparison = _Comparison(output.format, selection.columns, layouts)
    for where, row in found:
        given = next(expected, _END)
        while may_drop and given is not _END and not comparison.same(given[1], row):
            proof.rows += 1
            proof.dropped += 1
            given = next(expected, _END)
        if given is _END:
            proof.wrong(f"{where}: one row more than the input has")
            continue
        proof.rows += 1
        if not comparison.same(given[1], row):
            proof.wrong(f"{where}: not the row that stands at {given[0]}")
        comparison.count(where, row, proof)
    for where, _ in expected:
        proof.rows += 1
        if may_drop:
            proof.dropped += 1
        else:
            proof.wrong(f"{where}: missing in the output")
    return proof


class _Comparison:
    """Rows of the two tables held against each other, in the form that the output's format gives them."""

    def __init__(self, output: Format, columns: Sequence[str], layouts: Sequence[Layout]) -> None:
        self._is_text = output in (Format.CSV, Format.TSV)
        self._columns = frozenset(columns)
        self._layouts = layouts
        self._new = frozenset(name for layout in layouts for name in layout.names)

    def same(self, given: Row, found: Row) -> bool:
        """Whether it is the same row, but for the answers."""
        kept = {name: value for name, value in given.items() if not self._columns or name in self._columns}
        old = {name: value for name, value in found.items() if name not in self._new}
        if self._is_text:
            return {name: cell_text(kept.get(name)) for name in old} == old and kept.keys() <= old.keys()
        return bool(_plain(kept) == _plain(old))

    def count(self, where: str, row: Row, proof: Proof) -> None:
        """Count a row's outcomes: one of each step, and not two. It has failed where a step has."""
        failures = [layout for layout in self._layouts if self._failed(layout, where, row, proof)]
        proof.failed += bool(failures)
        proof.succeeded += not failures
        if failures:
            proof.errors[str(row.get(failures[0].error_code))] += 1

    def _failed(self, layout: Layout, where: str, row: Row, proof: Proof) -> bool:
        missing = next((name for name in layout.names if name not in row), None)
        if missing is not None:
            proof.wrong(f"{where}: there is no column {missing}")
            return True
        answers = [row[name] for name in layout.answers]
        is_answered = any(value not in (None, "") for value in answers) or len(answers) > 1
        if row[layout.error_code] in (None, ""):
            if not is_answered:
                proof.wrong(f"{where}: neither an answer nor an error")
            elif (fault := layout.fault(row, is_text=self._is_text)) is not None:
                proof.wrong(f"{where}: an answer that is not valid: {fault}")
            return False
        if any(value not in (None, "") for value in answers):
            proof.wrong(f"{where}: both an answer and an error")
        return True


def _placed(files: TableFiles) -> Iterator[tuple[str, Row]]:
    for piece in pieces(files, ROWS_AT_ONCE):
        rows = piece.rows if piece.rows is not None else rows_of(piece.batch)
        for number, row in zip(piece.numbers, rows, strict=True):
            yield place(piece.file, number), row


def _chosen(files: TableFiles, selection: Selection) -> Iterator[tuple[str, Row]]:
    taken = 0
    for where, row in _placed(files):
        if taken == selection.limit:
            return
        if all_met(selection.conditions, row):
            taken += 1
            yield where, row


def _plain(value: Any) -> Any:
    """A value in the form that all formats with types agree on: JSON, without nulls."""
    match value:
        case dict():
            return {name: _plain(part) for name, part in value.items() if part is not None}
        case list() | tuple():
            return [_plain(part) for part in value]
        case float() if value != value:  # noqa: PLR0124  # NaN
            return "NaN"
        case bool() | int() | float() | str() | None:
            return value
        case _:
            return cell_text(value)

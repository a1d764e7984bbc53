"""The proof of a run: each request has exactly one outcome, in input order, in strict JSON."""

import hashlib
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dispatcher.compression import reading
from dispatcher.errors import Fault
from dispatcher.jsonl import Line, split_lines
from dispatcher.partitions import Partitions, Record
from dispatcher.results.answered import Origin, read_answer
from dispatcher.results.problems import Problem, Problems, custom_id

IDS_MAX = 65_536
"""Requests and outcomes in memory at a time, some 20 MiB."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was found in an input and its outcomes."""

    requests: int
    """Valid input lines with distinct ids: each owes one outcome. Other lines owe none."""
    succeeded: int
    """Well-formed lines of the output file."""
    failed: int
    """Well-formed lines of the error file."""
    missing: int
    """Requests without an outcome."""
    repeated: int
    """Outcomes of a request that has one already, in either file."""
    unknown: int
    """Outcomes without a request."""
    malformed: int
    """Lines of the output and error files that are no outcomes, or stand in the wrong file."""
    disordered: int
    """Files whose lines are not in input order; each is judged up to its first unknown or repeated id."""
    problems: tuple[Fault, ...]
    """The first 20 of each kind, with file and line."""

    @property
    def ok(self) -> bool:
        """Whether every request has exactly one outcome, and nothing else was found."""
        return not self.problems


def verify(input_path: Path, output_path: Path, errors_path: Path | None, *, work_dir: Path) -> VerifyReport:
    """Compare an input with its output and error files. Blocks: run it in a thread.

    Each file is read once, as a stream, and a second time up to the last problem listed. Memory is bounded;
    intermediate data goes to `work_dir`. `.gz` and `.zst` files are accepted. Without `errors_path` there is
    no error file. Ids are told apart by 128 bits of BLAKE2b.

    Raises StorageError where a file cannot be read and InputError where an archive is damaged.
    """
    paths = {Origin.INPUT: input_path, Origin.OUTPUT: output_path}
    if errors_path is not None:
        paths[Origin.ERRORS] = errors_path
    problems = Problems(paths)
    with ExitStack() as stack:
        records = stack.enter_context(Partitions(work_dir, 4))
        lines = {origin: split_lines(stack.enter_context(reading(path))) for origin, path in paths.items()}
        requests = lines.pop(Origin.INPUT)
        outcomes = [_Outcomes(origin, each, records, problems) for origin, each in lines.items()]
        _walk(requests, outcomes, records)
        disordered = {place for each in outcomes if (place := each.drain())}
        ledger = _Ledger(problems, disordered)
        records.sweep(ledger.page)
    for origin, line in disordered:
        problems.add(Problem.DISORDERED, origin, line, "is not where the input has it")
    return _report(ledger.requests, {each.origin: each.well_formed for each in outcomes}, problems)


def _report(requests: int, well_formed: dict[Origin, int], problems: Problems) -> VerifyReport:
    return VerifyReport(
        requests=requests,
        succeeded=well_formed[Origin.OUTPUT],
        failed=well_formed.get(Origin.ERRORS, 0),
        missing=problems.count(Problem.MISSING),
        repeated=problems.count(Problem.REPEATED),
        unknown=problems.count(Problem.UNKNOWN),
        malformed=problems.count(Problem.MALFORMED),
        disordered=problems.count(Problem.DISORDERED),
        problems=problems.faults(),
    )


class _Outcomes:
    """The outcomes of one file, one of which is the next that the input has to match."""

    def __init__(
        self, origin: Origin, lines: Iterator[Line], records: Partitions, problems: Problems
    ) -> None:
        self.origin = origin
        self.well_formed = 0
        self.custom_id: str | None = None
        """Of the outcome to be matched; None at the end of the file."""
        self.line = 0
        self._lines = lines
        self._records = records
        self._problems = problems
        self.advance()

    def advance(self) -> None:
        """Go to the next outcome that has an id."""
        self.custom_id = None
        for line in self._lines:
            answered = read_answer(line, self.origin)
            if answered.fault is None:
                self.well_formed += 1
            else:
                self._problems.add(Problem.MALFORMED, self.origin, line.number, answered.fault)
            if answered.custom_id is not None:
                self.custom_id, self.line = answered.custom_id, line.number
                self._records.add(_record(answered.custom_id, self.origin, line.number))
                return

    def drain(self) -> tuple[Origin, int] | None:
        """Read the rest; return where the input's order was left, if it was."""
        left = None if self.custom_id is None else (self.origin, self.line)
        while self.custom_id is not None:
            self.advance()
        return left


def _walk(requests: Iterable[Line], outcomes: list[_Outcomes], records: Partitions) -> None:
    """Go through the input; both files follow, each as far as it keeps the order."""
    for line in requests:
        request_id = custom_id(line, Origin.INPUT)
        if request_id is None:
            continue
        records.add(_record(request_id, Origin.INPUT, line.number))
        for each in outcomes:
            if each.custom_id == request_id:
                each.advance()


class _Ledger:
    """Sums over all pages, and where the order of a file seems broken."""

    def __init__(self, problems: Problems, disordered: set[tuple[Origin, int]]) -> None:
        self.requests = 0
        self._problems = problems
        self._disordered = disordered

    def page(self) -> "_Page":
        """A sweep over some of the ids."""
        return _Page(self)

    def owe(self) -> None:
        """Count a request."""
        self.requests += 1

    def missing(self, line: int) -> None:
        """A request has no outcome."""
        self._problems.add(Problem.MISSING, Origin.INPUT, line, "has no outcome")

    def unknown(self, origin: Origin, line: int) -> None:
        """An outcome has no request."""
        self._disordered.discard((origin, line))
        self._problems.add(Problem.UNKNOWN, origin, line, "is not in the input")

    def repeated(self, origin: Origin, line: int, first: tuple[Origin, int]) -> None:
        """A request has another outcome."""
        self._disordered.discard((origin, line))
        what = f"has an outcome already, in {self._problems.place(*first)}"
        self._problems.add(Problem.REPEATED, origin, line, what)


class _Page:
    """Some ids, with the first line of the request and of the outcome that each has."""

    def __init__(self, ledger: _Ledger) -> None:
        self._ledger = ledger
        self._requests: dict[tuple[int, ...], int] = {}
        self._outcomes: dict[tuple[int, ...], tuple[Origin, int]] = {}

    def take(self, record: Record) -> bool:
        key, origin, line = record[:2], Origin(record[2]), record[3]
        known = key in self._requests or key in self._outcomes
        if not known and len(self._requests) + len(self._outcomes) >= IDS_MAX:
            return False
        if origin is Origin.INPUT:
            self._requests.setdefault(key, line)
        elif key in self._outcomes:
            self._ledger.repeated(origin, line, self._outcomes[key])
        else:
            self._outcomes[key] = (origin, line)
        return True

    def end(self) -> None:
        for key, line in self._requests.items():
            self._ledger.owe()
            if key not in self._outcomes:
                self._ledger.missing(line)
        for key, place in self._outcomes.items():
            if key not in self._requests:
                self._ledger.unknown(*place)


def _record(request_id: str, origin: Origin, line: int) -> Record:
    digest = hashlib.blake2b(request_id.encode(), digest_size=16).digest()
    return (*struct.unpack("qq", digest), origin, line)

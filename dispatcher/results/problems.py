"""What verify found wrong: counted in all, listed up to a limit, and named at the end."""

from bisect import insort
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from pathlib import Path

from dispatcher.compression import reading
from dispatcher.errors import Fault
from dispatcher.jsonl import Line, split_lines
from dispatcher.request_line import Head, parse_request, shown
from dispatcher.results.answered import Origin, read_answer

PROBLEMS_LISTED = 20


class Problem(Enum):
    """The kinds of what can be wrong."""

    MISSING = auto()
    REPEATED = auto()
    UNKNOWN = auto()
    MALFORMED = auto()
    DISORDERED = auto()


class Problems:
    """Problems by kind: all are counted, the first 20 of each kind, by place, are kept."""

    def __init__(self, paths: Mapping[Origin, Path]) -> None:
        self._paths = paths
        self._counts = dict.fromkeys(Problem, 0)
        self._listed: dict[Problem, list[tuple[Origin, int, str]]] = {problem: [] for problem in Problem}

    def add(self, problem: Problem, origin: Origin, line: int, what: str) -> None:
        """Keep one. `what` follows the name of the line's request, or stands alone where it is malformed."""
        self._counts[problem] += 1
        listed = self._listed[problem]
        insort(listed, (origin, line, what))
        del listed[PROBLEMS_LISTED:]

    def count(self, problem: Problem) -> int:
        """How many there are of this kind."""
        return self._counts[problem]

    def place(self, origin: Origin, line: int) -> str:
        """A line, as messages name it."""
        return f"{self._paths[origin]}:{line}"

    def faults(self) -> tuple[Fault, ...]:
        """The listed ones, with the ids of their requests: these are looked up in the files."""
        ids = {origin: self._custom_ids(origin) for origin in self._paths}
        return tuple(
            Fault(
                self.place(origin, line),
                what if problem is Problem.MALFORMED else f"{ids[origin][line]} {what}",
            )
            for problem, listed in self._listed.items()
            for origin, line, what in listed
        )

    def _custom_ids(self, origin: Origin) -> dict[int, str]:
        numbers = {line for listed in self._listed.values() for at, line, _ in listed if at is origin}
        return dict(_named(self._paths[origin], origin, numbers)) if numbers else {}


def _named(path: Path, origin: Origin, numbers: set[int]) -> Iterator[tuple[int, str]]:
    with reading(path) as chunks:
        for line in split_lines(chunks):
            if line.number in numbers:
                yield line.number, f"custom_id {shown(custom_id(line, origin))}"
            if line.number >= max(numbers):
                return


def custom_id(line: Line, origin: Origin) -> str | None:
    """The id of the request that a line makes or answers; None where it does neither."""
    if origin is not Origin.INPUT:
        return read_answer(line, origin).custom_id
    if line.content is None or line.blank:
        return None
    found = parse_request(line.content)
    return found.custom_id if isinstance(found, Head) else None

"""`--where`: simple conditions on a row's columns."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dispatcher.annotate.faults import RowError
from dispatcher.annotate.pieces import Row

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"\s*(?P<column>.+?)\s*(?P<sign>==|!=|>=|<=|=|<|>)\s*(?P<value>.*?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Condition:
    """A column compared with a value. A null is equal to null and to nothing else, and in no order."""

    column: str
    sign: str
    value: Any

    def met_by(self, row: Row) -> bool:
        """Whether the row meets it. Raises RowError for a column that is not there, or not comparable."""
        if self.column not in row:
            raise RowError(f"there is no such column, which --where {self} needs", self.column)
        found = row[self.column]
        if self.value is None or found is None:
            return (found is self.value) == (self.sign in ("=", "==")) if self.sign in _EQUALITY else False
        compare = _COMPARISONS[self.sign]
        if isinstance(found, str) and not isinstance(self.value, str):
            return self._met_by_text(found, compare)
        try:
            return compare(found, self.value)
        except TypeError:
            return compare(str(found), str(self.value))  # a date, say: ISO 8601 sorts as text

    def _met_by_text(self, found: str, compare: Callable[[Any, Any], bool]) -> bool:
        """A CSV's cell against a number or a truth value."""
        if isinstance(self.value, bool):
            return compare(found.lower(), str(self.value).lower())
        try:
            return compare(float(found), self.value)
        except ValueError as error:
            raise RowError(f"{found[:40]!r} is no number, which --where {self} needs", self.column) from error

    def __str__(self) -> str:
        return f"{self.column} {self.sign} {msgspec.json.encode(self.value).decode()}"


_EQUALITY = ("=", "==", "!=")


def parse_condition(text: str) -> Condition:
    """`stars >= 3`, `language = en`, `note != null`: the value is JSON, or else a text as it stands.

    Raises ValueError for what is no condition.
    """
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no condition; write one like: stars >= 3")
    try:
        value = msgspec.json.decode(found["value"])
    except msgspec.DecodeError:
        value = found["value"]
    return Condition(found["column"], found["sign"], value)


def all_met(conditions: Sequence[Condition], row: Row) -> bool:
    """Whether a row meets all of them. Raises RowError."""
    return all(condition.met_by(row) for condition in conditions)

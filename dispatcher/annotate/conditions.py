"""`--where`: simple conditions on a row's columns."""

import datetime as dt
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
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
        try:
            return _COMPARISONS[self.sign](*_alike(found, self.value))
        except (TypeError, ValueError) as error:
            if self.sign in _EQUALITY and not isinstance(found, str):
                return self.sign == "!="  # what are of two kinds are not equal
            message = f"{str(found)[:40]!r} cannot be compared, which --where {self} needs"
            raise RowError(message, self.column) from error

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
    except msgspec.DecodeError as error:
        value = found["value"]
        if value.startswith(("<", ">", "=")):
            raise ValueError(f"{text!r} is no condition; a text that begins so needs quotes") from error
    return Condition(found["column"], found["sign"], value)


def all_met(conditions: Sequence[Condition], row: Row) -> bool:
    """Whether a row meets all of them. Raises RowError."""
    return all(condition.met_by(row) for condition in conditions)


def _alike(found: Any, value: Any) -> tuple[Any, Any]:
    """A cell and a condition's value as what can be compared. Raises TypeError or ValueError."""
    match found:
        case str():
            return _text_alike(found, value)
        case bool() if isinstance(value, str):
            return found, {"true": True, "false": False}.get(value.lower(), value)
        case Decimal() if isinstance(value, float):
            return found, Decimal(repr(value))
        case dt.date() | dt.time():
            return _moment(found, str(value))
        case _:
            return found, value


def _text_alike(found: str, value: Any) -> tuple[Any, Any]:
    """A text, or a CSV's cell."""
    match value:
        case bool():
            return found.lower(), str(value).lower()
        case int() | float():
            return _number(found, value), value
        case str():
            return _spaced(found), _spaced(value)
        case _:
            return found, value


def _number(cell: str, value: float) -> float:
    """A cell's number; a whole one of any size where the value is one."""
    if isinstance(value, int):
        with suppress(ValueError):
            return int(cell)
    return float(cell)


def _spaced(text: str) -> str:
    """A text; of a time by ISO 8601, with a space between day and hour: both are written."""
    return text.replace("T", " ", 1) if _DAY_AND_HOUR.match(text) else text


def _moment(found: dt.date | dt.time, text: str) -> tuple[Any, Any]:
    if _YEAR_OR_MONTH.fullmatch(text):
        return found.isoformat(), text
    if not isinstance(found, dt.datetime):
        return found, type(found).fromisoformat(text)
    moment = dt.datetime.fromisoformat(text)
    return found, moment if moment.tzinfo is not None else moment.replace(tzinfo=found.tzinfo)


_DAY_AND_HOUR = re.compile(r"\d{4}-\d\d-\d\dT\d")
_YEAR_OR_MONTH = re.compile(r"\d{4}(-\d\d)?")

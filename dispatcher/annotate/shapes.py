"""The columns of JSON lines, found out from every line: a table with types needs them, and JSON has none."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dispatcher.annotate.faults import RowError
from dispatcher.annotate.pieces import Row

COLUMNS_MAX = 10_000
_INT_MAX = 2**63


class Shape:
    """What the values of one place have been so far."""

    __slots__ = ("items", "kind", "members")

    def __init__(self) -> None:
        self.kind = "null"
        self.items: Shape | None = None
        self.members: dict[str, Shape] = {}

    def add(self, value: Any) -> None:
        """Learn of a value. Raises TypeError where it is of another type than those before."""
        kind = _kind(value)
        if kind != self.kind:
            self._turn(kind)
        if kind == "list":
            self.items = self.items or Shape()
            for item in value:
                self.items.add(item)
        elif kind == "object":
            for name, member in value.items():
                self._member(name).add(member)

    def arrow_type(self) -> pa.DataType:
        """The type of a column of these values."""
        match self.kind:
            case "list":
                assert self.items is not None, "there was a list"
                return pa.list_(self.items.arrow_type())
            case "object":
                return pa.struct([pa.field(name, part.arrow_type()) for name, part in self.members.items()])
            case kind:
                return _SCALARS[kind]

    def _member(self, name: str) -> "Shape":
        if name not in self.members and len(self.members) >= COLUMNS_MAX:
            raise TypeError(f"more than {COLUMNS_MAX:,} different names: write JSON lines")
        return self.members.setdefault(name, Shape())

    def _turn(self, kind: str) -> None:
        kinds = {self.kind, kind} - {"null"}
        if kinds == {"whole number", "number"}:
            self.kind = "number"
        elif len(kinds) == 1:
            self.kind = kinds.pop()
        else:
            raise TypeError(
                f"mixed types: {kind} where the rows before have {self.kind}. "
                "Make them one type, or write JSON lines, which have no types"
            )


class Columns:
    """The columns of all rows, in the order of their first appearance.

    Args:
        kept: The only columns of interest; none: all.
        typed: Whether their types are, too.
    """

    def __init__(self, kept: Sequence[str], *, typed: bool) -> None:
        self._kept = dict.fromkeys(kept)
        self._typed = typed
        self._shapes: dict[str, Shape] = {}

    def add(self, row: Row) -> None:
        """Learn of a row. Raises RowError where a column is of mixed types."""
        for name, value in row.items():
            if self._kept and name not in self._kept:
                continue
            shape = self._shapes.get(name)
            if shape is None:
                if len(self._shapes) >= COLUMNS_MAX:
                    raise RowError(f"more than {COLUMNS_MAX:,} columns: write JSON lines", name)
                shape = self._shapes[name] = Shape()
            if self._typed:
                try:
                    shape.add(value)
                except TypeError as error:
                    raise RowError(str(error), name) from error

    def missing(self) -> Sequence[str]:
        """Those that are of interest, and that no row has had."""
        return [name for name in self._kept if name not in self._shapes]

    def schema(self) -> pa.Schema:
        """The columns; of type null where types are of no interest."""
        return pa.schema([pa.field(name, shape.arrow_type()) for name, shape in self._shapes.items()])


def _kind(value: Any) -> str:
    kind = _KINDS[type(value)]
    if kind == "whole number" and not -_INT_MAX <= value < _INT_MAX:
        raise TypeError("a whole number of more than 64 bits: make it a text, or write JSON lines")
    return kind


_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    list: "list",
    dict: "object",
}
_SCALARS = {
    "null": pa.null(),
    "true or false": pa.bool_(),
    "whole number": pa.int64(),
    "number": pa.float64(),
    "text": pa.string(),
}

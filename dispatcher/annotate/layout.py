"""The columns that answers become, and how a journal's record fills them."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from dispatcher.annotate.answers import AnswerKind, UnusableAnswerError, read_body
from dispatcher.annotate.cells import cell_value
from dispatcher.annotate.pieces import Row
from dispatcher.model import ErrorCode
from dispatcher.results.journal import Record

_FIXED = (
    pa.field("finish_reason", pa.string()),
    pa.field("prompt_tokens", pa.int64()),
    pa.field("completion_tokens", pa.int64()),
    pa.field("error", pa.string()),
    pa.field("error_code", pa.string()),
    pa.field("server", pa.string()),
    pa.field("attempts", pa.int64()),
)
_REASONING = pa.field("reasoning", pa.string())


class Layout:
    """The answers' columns: `answer`, or `answer_<property>` each, `answer_finish_reason` and so on."""

    def __init__(self, kind: AnswerKind, prefix: str, *, reasoning: bool) -> None:
        self._kind = kind
        self._prefix = prefix
        thoughts = (_REASONING,) if reasoning else ()
        fields = (*kind.columns, *thoughts, *_FIXED)
        self.fields: Sequence[pa.Field] = tuple(
            pa.field(self._name(field.name), field.type) for field in fields
        )
        self._reasoning = reasoning

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(field.name for field in self.fields)

    @property
    def answers(self) -> tuple[str, ...]:
        """The columns that are null for a failure."""
        return tuple(self._name(field.name) for field in self._kind.columns)

    @property
    def error_code(self) -> str:
        """The column that is null for a success."""
        return self._name("error_code")

    def twice(self) -> str | None:
        """A name that two columns would have: a property of the schema may be called `error`."""
        return next((name for name in self.names if self.names.count(name) > 1), None)

    def fault(self, row: Row, *, is_text: bool) -> str | None:
        """What is wrong with the answer of a finished table's row that has one; None for nothing.

        `is_text`: the row's values are a text format's cells.
        """
        found = {field.name: row[self._name(field.name)] for field in self._kind.columns}
        if is_text:
            found = {field.name: cell_value(found[field.name], field.type) for field in self._kind.columns}
        return self._kind.fault(found)

    def values(self, record: Record) -> Row:
        """One row's values, by column. What a row has not is null."""
        line = _LINE.decode(record.line)
        values: Row = dict.fromkeys(self.names)
        if line.error is not None:
            values[self._name("error")] = line.error.message
            values[self._name("error_code")] = line.error.code
        if line.provenance is not None:
            values[self._name("server")] = line.provenance.server
            values[self._name("attempts")] = line.provenance.attempts
        answered = record.ok or record.mark == ErrorCode.INVALID_ANSWER
        if answered and line.response is not None:
            values[self._name("prompt_tokens")] = record.tokens.prompt
            values[self._name("completion_tokens")] = record.tokens.completion
            self._fill(values, line.response.body, is_valid=record.ok)
        return values

    def _fill(self, values: Row, body: msgspec.Raw, *, is_valid: bool) -> None:
        try:
            reading = read_body(body)
        except UnusableAnswerError:
            return
        values[self._name("finish_reason")] = reading.finish_reason
        if self._reasoning:
            values[self._name("reasoning")] = reading.reasoning
        if is_valid:
            answer = self._kind.read(reading.content, cut=False)
            values.update({self._name(name): value for name, value in answer.items()})

    def _name(self, name: str) -> str:
        return f"{self._prefix}_{name}" if name else self._prefix


class _Error(msgspec.Struct, gc=False):
    code: str
    message: str


class _Provenance(msgspec.Struct, gc=False):
    server: str | None = None
    attempts: int | None = None


class _Response(msgspec.Struct, gc=False):
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Line(msgspec.Struct, gc=False):
    """What of an output line becomes columns."""

    response: _Response | None = None
    error: _Error | None = None
    provenance: _Provenance | None = None


_LINE: Any = msgspec.json.Decoder(_Line)

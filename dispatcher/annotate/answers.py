"""What kinds of answers there are: how each is asked for, checked, and laid out in columns."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import jsonschema_rs
import msgspec
import pyarrow as pa

from dispatcher.annotate.schema_types import arrow_type
from dispatcher.annotate.thoughts import split_thoughts
from dispatcher.model import AgainReason

_OF_PARTS: Final = frozenset({"$schema", "$id", "$anchor", "$defs", "definitions", "type", "properties"})
"""What of a schema says how each property is to be, and none of how they are to be together."""


class UnusableAnswerError(Exception):
    """An answer that is cut, empty or not valid. The text says which, and so does `reason`."""

    def __init__(self, message: str, reason: AgainReason = AgainReason.INVALID) -> None:
        super().__init__(message)
        self.reason = reason


class AnswerKind(Protocol):
    """What is asked for. A pure object."""

    @property
    def constraint(self) -> Mapping[str, Any]:
        """Members of the request's body that hold the server to it."""

    @property
    def columns(self) -> Sequence[pa.Field]:
        """The columns of an answer, named without the prefix: `""` is the prefix itself."""

    def read(self, content: str, *, cut: bool) -> dict[str, Any]:
        """An answer's text as values of these columns. `cut`: it was ended by its length.

        Raises UnusableAnswerError.
        """

    def fault(self, values: Mapping[str, Any]) -> str | None:
        """What is wrong with values of these columns, as a finished table has them; None for nothing."""


class FreeText:
    """Any text that is not empty and not cut."""

    constraint: Mapping[str, Any] = {}
    columns = (pa.field("", pa.string()),)

    def read(self, content: str, *, cut: bool) -> dict[str, Any]:
        """See AnswerKind."""
        if cut:
            raise cut_by_length()
        if not content.strip():
            raise UnusableAnswerError("empty", AgainReason.EMPTY)
        return {"": content}

    def fault(self, values: Mapping[str, Any]) -> str | None:
        """See AnswerKind."""
        text = values[""]
        return None if isinstance(text, str) and text.strip() else "empty"


class Label:
    """One of a few texts."""

    columns = (pa.field("", pa.string()),)

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = frozenset(labels)
        self.constraint: Mapping[str, Any] = {"structured_outputs": {"choice": list(labels)}}

    def read(self, content: str, *, cut: bool) -> dict[str, Any]:
        """See AnswerKind. A whole label counts, even one that took all the tokens there were."""
        label = content.strip()
        if label not in self._labels:
            raise cut_by_length() if cut else _unfit("not one of the labels", label)
        return {"": label}

    def fault(self, values: Mapping[str, Any]) -> str | None:
        """See AnswerKind."""
        label = values[""]
        return None if label in self._labels else f"not one of the labels: {label!r:.80}"


class Structured:
    """JSON that a schema admits. Raises ValueError where the schema is none."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._validator = jsonschema_rs.validator_for(dict(schema))
        properties = schema.get("properties") if schema.get("type") == "object" else None
        self._names = tuple(properties or ())
        self.columns: Sequence[pa.Field] = tuple(
            pa.field(name, arrow_type(part)) for name, part in (properties or {"": schema}).items()
        )
        self._struct = pa.struct(self.columns)
        self._required = frozenset(schema.get("required", ()) if properties else ())
        self._parts = jsonschema_rs.validator_for(
            {name: part for name, part in schema.items() if name in _OF_PARTS} if properties else dict(schema)
        )
        answer_format = {"name": "answer", "schema": schema, "strict": True}
        self.constraint: Mapping[str, Any] = {
            "response_format": {"type": "json_schema", "json_schema": answer_format}
        }

    def read(self, content: str, *, cut: bool) -> dict[str, Any]:
        """See AnswerKind. Members that the schema does not name have no column."""
        try:
            answer: Any = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise (cut_by_length() if cut else _unfit("not JSON", content)) from error
        self._check(answer)
        values = {name: answer.get(name) for name in self._names} if self._names else {"": answer}
        values = {field.name: _fitting(values[field.name], field.type) for field in self.columns}
        try:
            pa.array([values], self._struct)
        except (pa.ArrowException, OverflowError) as error:
            raise UnusableAnswerError(f"does not fit its column: {error}") from error
        return values

    def fault(self, values: Mapping[str, Any]) -> str | None:
        """See AnswerKind. Each property by its own part of the schema: members without a column are lost."""
        for field in self.columns:
            value = values[field.name]
            is_missing = value is None and bool(self._names)
            if is_missing and (field.name not in self._required or self._admits(field.name, None)):
                continue
            if is_missing:
                return f"{field.name} is missing, which the schema requires"
            if not any(self._admits(field.name, reading) for reading in _readings(value, field.type)):
                return f"{field.name or 'the answer'} is not valid by the schema: {value!r:.80}"
        return None

    def _admits(self, name: str, value: Any) -> bool:
        return self._parts.is_valid({name: value} if self._names else value)

    def _check(self, answer: Any) -> None:
        error = next(self._validator.iter_errors(answer), None)
        if error is not None:
            place = "/".join(map(str, error.instance_path))
            raise _unfit(f"not valid by the schema at /{place}", error.message)


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What of a chat answer is of use."""

    content: str
    reasoning: str | None
    finish_reason: str | None


def read_body(body: bytes | msgspec.Raw) -> Reading:
    """The first choice of a chat completion, its thoughts apart. Raises UnusableAnswerError."""
    try:
        choice = _BODY.decode(body).choices[0]
    except (msgspec.DecodeError, IndexError) as error:
        raise UnusableAnswerError("not the text of a chat completion") from error
    message = choice.message
    reasoning = message.reasoning or message.reasoning_content
    content, thoughts = split_thoughts(message.content or "")
    return Reading(content, reasoning or thoughts, choice.finish_reason)


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """JSON where the column has no better type for it; a whole number that was written as 3.0."""
    if value is None:
        return None
    if pa.types.is_string(kind) and not isinstance(value, str):
        return msgspec.json.encode(value).decode()
    if pa.types.is_integer(kind) and isinstance(value, float):
        return int(value)
    return value


def _readings(value: Any, kind: pa.DataType) -> Iterator[Any]:
    """What a column's value may have been: a column of texts holds JSON where its property is no text."""
    yield value
    if pa.types.is_string(kind) and isinstance(value, str):
        with suppress(msgspec.DecodeError):
            yield msgspec.json.decode(value)


def cut_by_length() -> UnusableAnswerError:
    """The error of an answer that its length has ended."""
    return UnusableAnswerError("cut by its length", AgainReason.CUT)


def _unfit(what: str, text: str) -> UnusableAnswerError:
    reason = AgainReason.INVALID if text else AgainReason.EMPTY
    return UnusableAnswerError(f"{what}: {text[:80]!r}" if text else f"{what}: empty", reason)


class _Message(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message
    finish_reason: str | None = None


class _Body(msgspec.Struct, gc=False):
    choices: list[_Choice]


_BODY = msgspec.json.Decoder(_Body)

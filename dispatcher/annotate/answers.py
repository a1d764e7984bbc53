"""What kinds of answers there are: how each is asked for, checked, and laid out in columns."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jsonschema_rs
import msgspec
import pyarrow as pa

from dispatcher.annotate.schema_types import arrow_type

_THOUGHTS = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)


class UnusableAnswerError(Exception):
    """An answer that is cut, empty or not valid. The text says which."""


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


class FreeText:
    """Any text that is not empty and not cut."""

    constraint: Mapping[str, Any] = {}
    columns = (pa.field("", pa.string()),)

    def read(self, content: str, *, cut: bool) -> dict[str, Any]:
        """See AnswerKind."""
        if cut:
            raise UnusableAnswerError("cut by its length")
        if not content.strip():
            raise UnusableAnswerError("empty")
        return {"": content}


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
            raise UnusableAnswerError("cut by its length" if cut else _named("not one of the labels", label))
        return {"": label}


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
        answer_format = {"name": "answer", "schema": schema, "strict": True}
        self.constraint: Mapping[str, Any] = {
            "response_format": {"type": "json_schema", "json_schema": answer_format}
        }

    def read(self, content: str, *, cut: bool) -> dict[str, Any]:
        """See AnswerKind. Members that the schema does not name have no column."""
        try:
            answer: Any = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise UnusableAnswerError("cut by its length" if cut else _named("not JSON", content)) from error
        self._check(answer)
        values = {name: answer.get(name) for name in self._names} if self._names else {"": answer}
        values = {field.name: _fitting(values[field.name], field.type) for field in self.columns}
        try:
            pa.array([values], self._struct)
        except (pa.ArrowException, OverflowError) as error:
            raise UnusableAnswerError(f"does not fit its column: {error}") from error
        return values

    def _check(self, answer: Any) -> None:
        error = next(self._validator.iter_errors(answer), None)
        if error is not None:
            place = "/".join(map(str, error.instance_path))
            raise UnusableAnswerError(_named(f"not valid by the schema at /{place}", error.message))


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
    content, reasoning = message.content or "", message.reasoning or message.reasoning_content
    if thoughts := _THOUGHTS.match(content):  # a server without a reasoning parser
        reasoning = reasoning or thoughts[0].strip()[len("<think>") : -len("</think>")].strip()
        content = content[thoughts.end() :]
    return Reading(content, reasoning, choice.finish_reason)


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """JSON where the column has no better type for it; a whole number that was written as 3.0."""
    if value is None:
        return None
    if pa.types.is_string(kind) and not isinstance(value, str):
        return msgspec.json.encode(value).decode()
    if pa.types.is_integer(kind) and isinstance(value, float):
        return int(value)
    return value


def _named(what: str, text: str) -> str:
    return f"{what}: {text[:80]!r}" if text else f"{what}: empty"


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

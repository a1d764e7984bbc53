"""`pool.canary`: one token, nothing, or a question whose answer is known."""

import json
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, field_validator

from dispatcher.config.values import Count, Name, Settings

MAX_TOKENS = 64
"""Enough for a short answer, and for a model that thinks first to have come to the point."""
_BOOL = TypeAdapter(bool)


class Message(Settings):
    """One message of the question."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, Field(min_length=1)]


class KnownAnswer(Settings):
    """A question, and what a server must answer before it is given any row."""

    messages: Annotated[tuple[Message, ...], Field(max_length=100)]
    expect: Name
    """Must stand in the answer. Upper and lower case are the same, and so is all white space."""
    model: Name | None = None
    """The served name to ask; a server that does not list it gets the one-token canary. None: its first."""
    max_tokens: Annotated[Count, Field(ge=1, le=4096)] = MAX_TOKENS

    @field_validator("messages")
    @classmethod
    def _asks_something(cls, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        if not messages:
            raise ValueError("must hold a message or more")
        return messages

    @field_validator("expect")
    @classmethod
    def _says_something(cls, expect: str) -> str:
        if not expect.strip():
            raise ValueError("must not be blank: every answer would hold it")
        return expect


def _canary(value: object) -> bool | KnownAnswer:
    """Read what a file, the environment (JSON there) or a program gives."""
    value = _decoded(value)
    if isinstance(value, Mapping | KnownAnswer):
        return KnownAnswer.model_validate(value)  # pydantic reports its faults at their places
    try:
        return _BOOL.validate_python(value)
    except ValidationError:
        raise ValueError("must be true, false, or a mapping with messages and expect") from None


def _decoded(value: object) -> object:
    if not (isinstance(value, str) and value.lstrip().startswith("{")):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"is not valid JSON: {error}") from None


Canary = Annotated[bool | KnownAnswer, BeforeValidator(_canary)]

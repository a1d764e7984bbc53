"""The settings of `dispatcher annotate`."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from dispatcher.config.values import Count, Name, Settings


def _split(value: object) -> object:
    """A list may be written as text with commas."""
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) != len(names):
        raise ValueError("must not name anything twice")
    return names


Names = Annotated[tuple[Name, ...], BeforeValidator(_split)]
Conditions = Annotated[tuple[Name, ...], BeforeValidator(_one_or_more)]


class AnnotateSettings(Settings):
    """What is asked about each row of a table, and what becomes of the answers."""

    prompt: Path | None = None
    """A Jinja2 template of the user's message."""
    system: Path | None = None
    """A Jinja2 template of the system message."""
    messages_column: Name | None = None
    """A column of ready conversations, in place of `prompt`."""
    image_columns: Names = ()
    """Columns of images (URL, path or bytes) that go with the prompt."""
    labels: Names = ()
    """The only answers there are."""
    answer_schema: Path | None = None
    """A file with the JSON schema of the answers."""
    prefix: Name = "answer"
    """What the names of the new columns begin with."""
    max_tokens: Annotated[Count, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Count | None = None
    validate_retries: Annotated[Count, Field(ge=0, le=100)] = 3
    """How often a row is asked again whose answer is cut, empty or not valid."""
    drop_invalid: bool = False
    """Whether rows without a valid answer are left out of the output."""
    keep_reasoning: bool = False
    """Whether a model's thinking gets a column of its own."""
    id_column: Name | None = None
    """A column that names each row once. None: rows have numbers."""
    where: Conditions = ()
    """Conditions that a row must meet, such as `stars >= 3`."""
    limit: Annotated[Count, Field(ge=1)] | None = None
    """How many rows to take, of those that meet the conditions."""
    columns: Names = ()
    """The input's columns that the output has; none: all of them."""

    @field_validator("labels", "columns", "image_columns")
    @classmethod
    def _without_repetition(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _distinct(names)

    @field_validator("answer_schema")
    @classmethod
    def _excludes_labels(cls, schema: Path | None, info: ValidationInfo) -> Path | None:
        if schema is not None and info.data.get("labels"):
            raise ValueError("must not be set together with annotate.labels")
        return schema

    @field_validator("messages_column")
    @classmethod
    def _excludes_prompt(cls, column: str | None, info: ValidationInfo) -> str | None:
        if column is not None and (info.data.get("prompt") or info.data.get("system")):
            raise ValueError("must not be set together with annotate.prompt or annotate.system")
        return column

"""The settings of `dispatcher annotate`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from dispatcher.config.servers import ServerList
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


TableFormat = Literal["jsonl", "csv", "tsv", "parquet", "arrow"]
Names = Annotated[tuple[Name, ...], BeforeValidator(_split)]
Conditions = Annotated[tuple[Name, ...], BeforeValidator(_one_or_more)]


def _json_object(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"must be a JSON object: {error}") from error


def _not_ours(members: dict[str, Any]) -> dict[str, Any]:
    if ours := sorted(name for name in members if name in SAID_ELSEWHERE or name.startswith("guided_")):
        raise ValueError(f"must not have {ours[0]}: it is said otherwise, or has no place here")
    return members


SAID_ELSEWHERE = frozenset(
    {
        *("messages", "model", "stream", "stream_options", "n", "best_of"),
        *("response_format", "structured_outputs"),  # answers are held against labels and schemas alone
    }
)
"""Members of a body that `extra_body` must not have."""
ExtraBody = Annotated[dict[str, Any], BeforeValidator(_json_object), AfterValidator(_not_ours)]


class QuestionSettings(Settings):
    """What is asked about each row of a table, and what its answers are held to."""

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
    max_tokens: Annotated[Count, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Count | None = None
    validate_retries: Annotated[Count, Field(ge=0, le=100)] = 3
    """How often a row is asked again whose answer is cut, empty or not valid."""
    keep_reasoning: bool = False
    """Whether a model's thinking gets a column of its own."""
    confidence: bool = False
    """Whether labels get columns with the probability of each."""
    max_calls: Annotated[Count, Field(ge=1, le=1000)] = 8
    """Answers that a row may take to find its labels' probabilities, the first included."""
    extra_body: ExtraBody = Field(default_factory=dict)
    """Other members of each request's body, as JSON where it is a text: `chat_template_kwargs`, say."""

    @field_validator("labels", "image_columns")
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


class StepSettings(QuestionSettings):
    """One of several questions, asked about all rows before the next. The section says what it leaves out."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]
    """What it is called, in progress and messages; and its folder in the state directory."""
    prefix: Name | None = None
    """What the names of its columns begin with. None: its name."""
    model: Name | None = None
    """None: `run.model`."""
    servers: ServerList = ()
    """None: those of the whole."""


class AnnotateSettings(QuestionSettings):
    """What is asked about each row of a table, and what becomes of the answers."""

    prefix: Name = "answer"
    """What the names of the new columns begin with."""
    drop_invalid: bool = False
    """Whether rows without a valid answer are left out of the output."""
    id_column: Name | None = None
    """A column that names each row once. None: rows have numbers."""
    where: Conditions = ()
    """Conditions that a row must meet, such as `stars >= 3`."""
    limit: Annotated[Count, Field(ge=1)] | None = None
    """How many rows to take, of those that meet the conditions."""
    columns: Names = ()
    """The input's columns that the output has; none: all of them."""
    input_format: TableFormat | None = None
    """None: as the input's name ends; of standard input JSON lines."""
    output_format: TableFormat | None = None
    """None: as the output's name ends; of standard output JSON lines."""
    steps: tuple[StepSettings, ...] = ()
    """Several questions, in order: the columns of each can be used by the next."""

    @field_validator("columns")
    @classmethod
    def _columns_without_repetition(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _distinct(names)

    @field_validator("steps")
    @classmethod
    def _steps_ask_themselves(
        cls, steps: tuple[StepSettings, ...], info: ValidationInfo
    ) -> tuple[StepSettings, ...]:
        if steps and (set_too := [name for name in OF_A_STEP if info.data.get(name)]):
            raise ValueError(f"must not be set together with annotate.{set_too[0]}: say it in each step")
        if (twice := _twice([step.name for step in steps])) is not None:
            raise ValueError(f"must not name two steps {twice}")
        return steps


OF_A_STEP = ("prompt", "messages_column", "labels", "answer_schema")
"""What no two steps have in common."""


def _twice(names: Sequence[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)

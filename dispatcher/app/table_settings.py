"""The settings of `annotate` as what they stand for: templates, answers, conditions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec

from dispatcher.annotate.answers import AnswerKind, FreeText, Label, Structured
from dispatcher.annotate.conditions import Condition, parse_condition
from dispatcher.annotate.confidence import ConfidenceReview, LabelWithConfidence
from dispatcher.annotate.recipe import Recipe
from dispatcher.annotate.review import AnswerReview
from dispatcher.annotate.templates import Prompt, read_prompt, read_text
from dispatcher.config import AnnotateSettings, Config
from dispatcher.errors import ConfigError, Fault
from dispatcher.ports import Review
from dispatcher.vllm.scoring import Method
from dispatcher.vllm.scoring.labels import LabelSet, label_set

SCHEMA = "annotate.answer_schema"
CONFIDENCE = "annotate.confidence"


def read_recipe(config: Config, kind: AnswerKind) -> Recipe:
    """What is asked about a row, held to answers of this kind.

    Raises ConfigError where a template cannot be used, or nothing is asked.
    """
    settings = config.annotate
    if settings.prompt is None and settings.messages_column is None:
        fault = Fault(
            "annotate.prompt", "must name a template (--prompt prompt.md), or give --messages-column"
        )
        raise ConfigError((fault,))
    return Recipe(
        prompt=_prompt(settings.prompt, "annotate.prompt"),
        system=_prompt(settings.system, "annotate.system"),
        messages_column=settings.messages_column,
        image_columns=settings.image_columns,
        options=options_of(config, kind),
    )


def answer_kind(settings: AnnotateSettings) -> AnswerKind:
    """What answers are held to. Raises ConfigError for what is no schema, and labels that are too alike."""
    if settings.confidence:
        return LabelWithConfidence(_label_set(settings).texts)
    if settings.labels:
        return Label(settings.labels)
    if settings.answer_schema is None:
        return FreeText()
    path = settings.answer_schema
    try:
        schema: Any = msgspec.json.decode(read_text(path, SCHEMA))
    except msgspec.DecodeError as error:
        raise ConfigError((Fault(SCHEMA, f"{path}: not JSON: {error}"),)) from error
    return structured(schema, str(path))


def review_of(settings: AnnotateSettings, kind: AnswerKind, valid: Callable[[Any], object] | None) -> Review:
    """What looks at answers of this kind. `valid` is given each, and raises ValueError for a bad one."""
    if not settings.confidence:
        return AnswerReview(kind, settings.validate_retries, valid)
    method = Method(max_calls=settings.max_calls)
    return ConfidenceReview(_label_set(settings), method, settings.validate_retries, valid)


def _label_set(settings: AnnotateSettings) -> LabelSet:
    if not settings.labels:
        raise ConfigError((Fault(CONFIDENCE, "needs annotate.labels: it is about them"),))
    sampled = [name for name in ("temperature", "top_p", "seed") if getattr(settings, name) is not None]
    if sampled:
        message = f"must not be set together with annotate.{sampled[0]}: the likeliest label is the answer"
        raise ConfigError((Fault(CONFIDENCE, message),))
    try:
        return label_set(settings.labels)
    except ConfigError as error:
        raise ConfigError(
            tuple(Fault(f"annotate.{fault.where}", fault.message) for fault in error.faults)
        ) from error


def structured(schema: object, name: str) -> AnswerKind:
    """Answers that a JSON schema admits. Raises ConfigError where it is none; `name` is what it is called."""
    if not isinstance(schema, Mapping):
        raise ConfigError((Fault(SCHEMA, f"{name}: must be a JSON object"),))
    try:
        return Structured(schema)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        said = str(error).splitlines()[0]
        raise ConfigError((Fault(SCHEMA, f"{name}: not a JSON schema: {said}"),)) from error


def conditions_of(settings: AnnotateSettings) -> tuple[Condition, ...]:
    """`annotate.where`. Raises ConfigError for what is no condition."""
    try:
        return tuple(parse_condition(text) for text in settings.where)
    except ValueError as error:
        raise ConfigError((Fault("annotate.where", str(error)),)) from error


def _prompt(path: Path | None, setting: str) -> Prompt | None:
    return None if path is None else read_prompt(path, setting)


def options_of(config: Config, kind: AnswerKind) -> dict[str, Any]:
    """The members of a request's body beside the messages."""
    settings = config.annotate
    given: dict[str, Any] = {
        "model": config.run.model_override or config.run.model,
        "max_tokens": settings.max_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "seed": settings.seed,
    }
    said = {name: value for name, value in given.items() if value is not None}
    return {**said, **settings.extra_body, **kind.constraint}

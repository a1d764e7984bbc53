"""What is asked about a table: one question, or several in a row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.app.annotator import Annotator
from dispatcher.config import Config, step_configs
from dispatcher.errors import ConfigError, Fault


@dataclass(frozen=True, slots=True)
class Question:
    """One question, as if it were the only one."""

    name: str
    """What the step is called; empty where there are no steps."""
    config: Config
    annotator: Annotator


Valid = Callable[[Any], object]
"""Given an answer, a text or the values by name; raises ValueError for one that will not do."""


def questions_of(config: Config, valid: Valid | None = None) -> Sequence[Question]:
    """The steps in their order, or the one question there is, whose answers must be `valid`.

    Raises ConfigError for prompts and schemas that cannot be used, naming the step, and where columns of two
    steps would have one name.
    """
    steps = step_configs(config)
    if not steps:
        return (Question("", config, Annotator.of(config, valid=valid)),)
    if valid is not None:
        raise ConfigError((Fault("valid", "is for one question: it must not be given together with steps"),))
    questions = [_question(number, name, each) for number, (name, each) in enumerate(steps)]
    taken: dict[str, str] = {}
    for question in questions:
        for column in question.annotator.layout.names:
            if column in taken:
                message = f"the steps {taken[column]} and {question.name} would both have a column {column}"
                raise ConfigError((Fault("annotate.steps", f"{message}; give one of them a prefix"),))
            taken[column] = question.name
    return questions


def _question(number: int, name: str, config: Config) -> Question:
    try:
        return Question(name, config, Annotator.of(config))
    except ConfigError as error:
        place = f"annotate.steps[{number}]."
        faults = (Fault(fault.where.replace("annotate.", place, 1), fault.message) for fault in error.faults)
        raise ConfigError(tuple(faults)) from error

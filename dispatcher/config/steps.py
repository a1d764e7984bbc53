"""Several questions in a row: which of their settings hold, and what each is run with."""

from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.config.annotate import AnnotateSettings, QuestionSettings, StepSettings
from dispatcher.config.settings import Config

Settings = dict[tuple[str, ...], object]
STEPS = ("annotate", "steps")
_ELSEWHERE = {("servers",): "servers", ("run", "model"): "model"}
"""Settings that steps have under a name of their own."""


def over_steps(by_precedence: Sequence[Settings]) -> list[object] | None:
    """The steps as given; what a flag or a variable says of all is laid over what a file says of each.

    `by_precedence` are the places that settings are read from, the first of which wins. None: there are no
    steps.
    """
    given = next((number for number, values in enumerate(by_precedence) if values.get(STEPS)), None)
    if given is None or not isinstance(steps := by_precedence[given][STEPS], list):
        return None
    above: dict[str, object] = {}
    for values in reversed(by_precedence[:given]):
        above.update({name: value for place, value in values.items() if (name := _of_steps(place))})
    return [{**step, **above} if isinstance(step, Mapping) else step for step in steps]


def step_configs(config: Config) -> tuple[tuple[str, Config], ...]:
    """Each step's name, and the configuration as if it were the only question; one without steps has none."""
    return tuple((step.name, _of(config, step)) for step in config.annotate.steps)


def _of_steps(place: tuple[str, ...]) -> str | None:
    """What a setting is called in a step; None where a step has no such."""
    if place[0] == "annotate" and place[1] in QuestionSettings.model_fields:
        return place[1]
    return _ELSEWHERE.get(place)


def _of(config: Config, step: StepSettings) -> Config:
    question = {name: _said(config.annotate, step, name) for name in QuestionSettings.model_fields}
    annotate: dict[str, Any] = {**question, "prefix": step.prefix or step.name, "steps": ()}
    run: dict[str, Any] = {} if step.model is None else {"model": step.model, "model_override": None}
    changed: dict[str, Any] = {
        "annotate": config.annotate.model_copy(update=annotate),
        "run": config.run.model_copy(update=run),
    }
    if step.servers:  # its own, and no others
        changed["servers"] = step.servers
        changed["discovery"] = config.discovery.model_copy(update={"file": None, "dns": None})
    return config.model_copy(update=changed)


def _said(section: AnnotateSettings, step: StepSettings, name: str) -> Any:
    return getattr(step if name in step.model_fields_set else section, name)

"""Prompts as Jinja2 templates over a row's columns, in a sandbox."""

from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, UndefinedError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dispatcher.annotate.faults import RowError
from dispatcher.annotate.pieces import Row
from dispatcher.errors import ConfigError, Fault

WHOLE_ROW = "row"
"""The name under which a template has the row itself: for columns whose names are no identifiers."""


class Prompt:
    """One template. Raises ConfigError where its text is none."""

    def __init__(self, text: str, name: str, setting: str) -> None:
        environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
        try:
            parsed = environment.parse(text)
            self._template = environment.from_string(text)
        except TemplateSyntaxError as error:
            raise ConfigError((Fault(setting, f"{name}, line {error.lineno}: {error.message}"),)) from error
        self.text = text
        self.columns = frozenset(meta.find_undeclared_variables(parsed) - set(environment.globals))

    def render(self, row: Row) -> str:
        """The prompt of a row. Raises RowError where a column is not there or the template fails."""
        context: dict[str, Any] = {WHOLE_ROW: row, **row}
        try:
            return self._template.render(context)
        except UndefinedError as error:
            raise RowError(f"the prompt cannot be made: {error}", self._missing(row)) from error
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise RowError(f"the prompt cannot be made: {type(error).__name__}: {error}") from error
        except (OverflowError, RecursionError, MemoryError) as error:
            raise RowError(f"the prompt cannot be made: {type(error).__name__}") from error

    def _missing(self, row: Row) -> str | None:
        return next(iter(sorted(self.columns - row.keys() - {WHOLE_ROW})), None)


def read_prompt(path: Path, setting: str) -> Prompt:
    """A template from a file. Raises ConfigError where it cannot be read or is none."""
    return Prompt(read_text(path, setting), str(path), setting)


def read_text(path: Path, setting: str) -> str:
    """A file's text. Raises ConfigError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig").rstrip("\n")
    except OSError as error:
        raise ConfigError((Fault(setting, f"{path}: cannot be read: {error.strerror}"),)) from error
    except UnicodeDecodeError as error:
        raise ConfigError((Fault(setting, f"{path}: not UTF-8 text"),)) from error

"""What is asked about a row: a chat completion, made of templates and options."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dispatcher.annotate.faults import RowError
from dispatcher.annotate.images import check_image, image_part
from dispatcher.annotate.pieces import Row
from dispatcher.annotate.templates import WHOLE_ROW, Prompt

ROUTE = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a row becomes the body of a request."""

    prompt: Prompt | None = None
    system: Prompt | None = None
    messages_column: str | None = None
    image_columns: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """Other members of the body: `model`, `temperature`, `structured_outputs`."""

    @property
    def columns(self) -> frozenset[str] | None:
        """The columns that it may look at; None: any."""
        named = [prompt.columns for prompt in (self.prompt, self.system) if prompt is not None]
        looked_at = frozenset().union(*named)
        if WHOLE_ROW in looked_at:
            return None
        more = {self.messages_column} if self.messages_column else set()
        return looked_at | more | set(self.image_columns)

    def looks_at(self, names: Collection[str]) -> bool:
        """Whether it may look at one of these columns."""
        return self.columns is None or not self.columns.isdisjoint(names)

    def check(self, row: Row) -> None:
        """Find out what would be wrong with a row's body, without the work of images. Raises RowError."""
        for column in self.image_columns:
            check_image(_cell(row, column), column)
        self._conversation(row, ())

    def body(self, row: Row) -> bytes:
        """The body of a row's request, as JSON. Raises RowError."""
        images = [image_part(_cell(row, column), column) for column in self.image_columns]
        return msgspec.json.encode({**self.options, "messages": self._conversation(row, images)})

    def _conversation(self, row: Row, images: Sequence[dict[str, Any]]) -> list[Any]:
        if self.messages_column is not None:
            return _messages(_cell(row, self.messages_column), self.messages_column)
        assert self.prompt is not None, "there is a prompt where there is no column of messages"
        text = self.prompt.render(row)
        content = [*images, {"type": "text", "text": text}] if images else text
        user = {"role": "user", "content": content}
        return (
            [user] if self.system is None else [{"role": "system", "content": self.system.render(row)}, user]
        )


class Recipes:
    """What several steps ask about a row, in order, as far as it can be told before any of it is answered.

    Args:
        steps: Each step's name, recipe, and the columns that its answers become.
    """

    def __init__(self, steps: Sequence[tuple[str, Recipe, Collection[str]]]) -> None:
        self._steps: list[tuple[str, Recipe, frozenset[str]]] = []
        known: frozenset[str] = frozenset()
        needed: frozenset[str] | None = frozenset()
        for name, recipe, new in steps:
            self._steps.append((name, recipe, known))
            needed = None if needed is None or recipe.columns is None else needed | (recipe.columns - known)
            known |= set(new)
        self._needed = needed

    @property
    def columns(self) -> frozenset[str] | None:
        """The input's columns that they may look at; None: any."""
        return self._needed

    def check(self, row: Row) -> None:
        """Find out what would be wrong with the bodies of a row. Raises RowError."""
        for name, recipe, known in self._steps:
            if not known or not recipe.looks_at(known):
                recipe.check(row)
                continue
            missing = sorted((recipe.columns or frozenset()) - known - row.keys())
            if missing:
                raise RowError(f"there is no such column, which step {name} needs", missing[0])


def _cell(row: Row, column: str) -> Any:
    if column not in row:
        raise RowError("there is no such column", column)
    return row[column]


def _messages(cell: Any, column: str) -> list[Any]:
    """A conversation: a list of messages, or the JSON text of one."""
    if isinstance(cell, str):
        try:
            cell = msgspec.json.decode(cell)
        except msgspec.DecodeError as error:
            raise RowError(f"not the JSON of a list of messages: {error}", column) from error
    is_list = isinstance(cell, list) and bool(cell)
    if not is_list or not all(isinstance(message, dict) and "role" in message for message in cell):
        raise RowError("not a list of messages, each with a role", column)
    # A column has one type for all messages: what a message lacks is null there.
    return [{name: part for name, part in message.items() if part is not None} for message in cell]

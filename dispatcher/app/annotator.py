"""Rows as requests and outcomes as columns: what a table, a preview and a stream of rows have in common."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Self

from dispatcher.annotate.answers import AnswerKind
from dispatcher.annotate.faults import RowError, place
from dispatcher.annotate.layout import Layout
from dispatcher.annotate.pieces import Row
from dispatcher.annotate.recipe import ROUTE, Recipe
from dispatcher.annotate.staging import refuse_collision
from dispatcher.app.fleet import Fleet
from dispatcher.app.stream import Stream
from dispatcher.app.table_settings import SCHEMA, answer_kind, read_recipe, review_of
from dispatcher.config import Config
from dispatcher.errors import ConfigError, Fault, InputError
from dispatcher.model import Job, JobId, Request
from dispatcher.ports import Review
from dispatcher.results.journal import record_of


@dataclass(frozen=True, slots=True)
class Annotator:
    """What is asked, and what the answers become."""

    recipe: Recipe
    kind: AnswerKind
    layout: Layout
    review: Review
    model: str | None

    @classmethod
    def of(
        cls,
        config: Config,
        recipe: Recipe | None = None,
        kind: AnswerKind | None = None,
        valid: Callable[[Any], object] | None = None,
    ) -> Self:
        """By the settings, unless `recipe` or `kind` are given. Raises ConfigError for what cannot be used.

        `valid` is given each answer, and raises ValueError for one that will not do.
        """
        settings = config.annotate
        kind = kind or answer_kind(settings)
        layout = Layout(kind, settings.prefix, reasoning=settings.keep_reasoning)
        if (twice := layout.twice()) is not None:
            raise ConfigError((Fault(SCHEMA, f"two columns would be called {twice}"),))
        review = review_of(settings, kind, valid)
        model = config.run.model_override or config.run.model
        return cls(recipe or read_recipe(config, kind), kind, layout, review, model)

    async def annotated(self, fleet: Fleet, rows: AsyncIterator[Row]) -> AsyncGenerator[Row, None]:
        """Rows with their answers, as they are ready and not in order. Nothing is kept on disk.

        Raises InputError for a row that cannot be asked about.
        """
        asked: dict[int, Row] = {}
        async with aclosing(Stream(fleet, self._requests(rows, asked), self.review).outcomes()) as outcomes:
            async for outcome in outcomes:
                values = self.layout.values(record_of(outcome, _NO_JOB))
                yield {**asked.pop(outcome.index), **values}

    async def _requests(self, rows: AsyncIterator[Row], asked: dict[int, Row]) -> AsyncIterator[Request]:
        index = 0
        async for row in rows:
            asked[index] = row
            yield self._request(index, row)
            index += 1

    def _request(self, index: int, row: Row) -> Request:
        try:
            refuse_collision(row, self.layout.names)
            return Request(index, str(index), ROUTE, self.model, self.recipe.body(row))
        except RowError as error:
            raise InputError(f"{place('rows', index, error.column)}: {error.message}") from error


_NO_JOB = Job(JobId("rows"))

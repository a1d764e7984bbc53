"""A shard's rows as requests: the port `Payloads`."""

import asyncio
from collections.abc import Sequence

from dispatcher.annotate.faults import RowError
from dispatcher.annotate.ids import row_id
from dispatcher.annotate.joining import Answered
from dispatcher.annotate.pieces import Row
from dispatcher.annotate.recipe import ROUTE, Recipe
from dispatcher.annotate.staged import StagedTable, staged_rows
from dispatcher.errors import StorageError
from dispatcher.model import Lease, Request, Shard


class TablePayloads:
    """Requests of a staged table.

    Args:
        table: The rows.
        recipe: How one becomes a request.
        model: What every request asks for; None: whatever a server has.
        id_column: Names the rows; None: they have numbers.
        earlier: Steps that are finished. Rows have their columns as well; one for which the recipe needs an
            answer that there is not, or of whose answers no prompt can be made, is withheld.
    """

    def __init__(
        self,
        table: StagedTable,
        recipe: Recipe,
        model: str | None,
        id_column: str | None,
        earlier: Sequence[Answered] = (),
    ) -> None:
        self._table = table
        self._recipe = recipe
        self._model = model
        self._id_column = id_column
        self._earlier = [each for each in earlier if recipe.looks_at(each.layout.names)]
        columns = recipe.columns
        self._columns = columns if columns is None or id_column is None else columns | {id_column}

    async def read(self, lease: Lease) -> Sequence[Request]:
        """See Payloads. Raises StorageError where the staged table, or an image's file, has changed."""
        return await asyncio.to_thread(self._read, lease)

    def _read(self, lease: Lease) -> list[Request]:
        shard = lease.shard
        rows = staged_rows(self._table.read(shard), self._columns)
        lacking: dict[int, str] = {}
        for each in self._earlier:
            self._add_columns(each, shard, rows, lacking)
        return [
            self._request(index, row, lacking.get(index)) for index, row in enumerate(rows, shard.first_index)
        ]

    def _add_columns(
        self, step: Answered, shard: Shard, rows: Sequence[Row], lacking: dict[int, str]
    ) -> None:
        needed = self._recipe.looks_at(step.layout.answers)
        for row, record in zip(rows, step.records(shard), strict=True):
            row.update(step.layout.values(record))
            if needed and record.failed:
                lacking.setdefault(record.index, f"step {step.name} has no answer: {record.mark}")

    def _request(self, index: int, row: Row, lacking: str | None) -> Request:
        name = str(index)
        try:
            if self._id_column is not None:
                name = row_id(row, self._id_column)
            body = b"" if lacking else self._recipe.body(row)
        except RowError as error:
            if not self._earlier:
                raise StorageError(
                    f"row {index} of those that were staged: {error.message}; it was good when the run "
                    "began. Put back what has changed, and run the same command again"
                ) from error
            body, lacking = b"", error.message
        return Request(index, name, ROUTE, self._model, body, lacking)

"""A shard's rows as requests: the port `Payloads`."""

import asyncio
from collections.abc import Sequence

from dispatcher.annotate.faults import RowError
from dispatcher.annotate.recipe import ROUTE, Recipe
from dispatcher.annotate.staged import StagedTable, staged_rows
from dispatcher.annotate.staging import row_id
from dispatcher.errors import StorageError
from dispatcher.model import Lease, Request


class TablePayloads:
    """Requests of a staged table.

    Args:
        table: The rows.
        recipe: How one becomes a request.
        model: What every request asks for; None: whatever a server has.
        id_column: Names the rows; None: they have numbers.
    """

    def __init__(self, table: StagedTable, recipe: Recipe, model: str | None, id_column: str | None) -> None:
        self._table = table
        self._recipe = recipe
        self._model = model
        self._id_column = id_column
        columns = recipe.columns
        self._columns = columns if columns is None or id_column is None else columns | {id_column}

    async def read(self, lease: Lease) -> Sequence[Request]:
        """See Payloads. Raises StorageError where the staged table, or an image's file, has changed."""
        return await asyncio.to_thread(self._read, lease)

    def _read(self, lease: Lease) -> list[Request]:
        first = lease.shard.first_index
        rows = staged_rows(self._table.read(lease.shard), self._columns)
        requests = []
        for index, row in enumerate(rows, first):
            try:
                name = str(index) if self._id_column is None else row_id(row, self._id_column)
                requests.append(Request(index, name, ROUTE, self._model, self._recipe.body(row)))
            except RowError as error:
                raise StorageError(
                    f"row {index} of those that were staged: {error.message}; it was good when the run "
                    "began. Put back what has changed, and run the same command again"
                ) from error
        return requests

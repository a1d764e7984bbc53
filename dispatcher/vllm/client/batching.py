"""Many things done a few at a time, with their results in order."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from dispatcher.errors import first_of

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


async def in_order(
    items: Iterable[_Item], work: Callable[[_Item], Awaitable[_Result]], limit: int
) -> list[_Result]:
    """Work on all items, `limit` at a time, and give the results in the items' order.

    An item is taken only when its turn has come, so a generator of millions makes no millions of tasks. The
    first error ends the rest and is raised.
    """
    turns = asyncio.Semaphore(limit)
    results: dict[int, _Result] = {}

    async def one(position: int, item: _Item) -> None:
        try:
            results[position] = await work(item)
        finally:
            turns.release()

    try:
        async with asyncio.TaskGroup() as group:
            for position, item in enumerate(items):
                await turns.acquire()
                group.create_task(one(position, item), name=f"request-{position}")
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return [results[position] for position in range(len(results))]

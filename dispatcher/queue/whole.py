"""Work that a cancellation must not cut in two."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def whole(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let a cancelled caller wait for the function's end, and raise CancelledError only then.

    For a transaction that takes milliseconds. A statement which is abandoned while SQLite's thread runs it
    keeps its locks, and the connection cannot be used again.
    """

    @wraps(function)
    async def to_the_end(*args: P.args, **kwargs: P.kwargs) -> T:
        task = asyncio.create_task(function(*args, **kwargs), name=f"queue-{function.__name__}")
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as exc:
                cancelled = exc
        if cancelled is not None:
            raise cancelled from task.exception()
        return task.result()

    return to_the_end

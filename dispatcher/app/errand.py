"""Long work in a thread, on a file that is nobody else's meanwhile."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from dispatcher.errors import StoppedError

T = TypeVar("T")


class Errand:
    """Work that ends soon after the task which waits for it was cancelled, and that is waited for even then.

    A thread cannot be ended from without: left alone it would go on for minutes in a directory whose lock
    has been let go of, under the hands of the next run.
    """

    def __init__(self) -> None:
        self._unwanted = False

    def check(self) -> None:
        """For the work itself, every so often. Raises StoppedError where nobody wants it any more."""
        if self._unwanted:
            raise StoppedError("cancelled; run it again to go on")

    async def do(self, work: Callable[[], T]) -> T:
        """Do the work in a thread."""
        doing = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            self._unwanted = True
            await asyncio.wait([doing])
            doing.exception()
            raise

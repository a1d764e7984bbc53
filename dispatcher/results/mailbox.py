"""Where a recorder leaves word of what has become durable."""

import asyncio
from collections.abc import Sequence

from dispatcher.ports import Recorded


class Mailbox:
    """Notes for one reader. Nothing is lost where the reader is cancelled while it waits."""

    def __init__(self) -> None:
        self._notes: list[Recorded] = []
        self._arrived = asyncio.Event()

    def put(self, note: Recorded) -> None:
        """Leave a note."""
        self._notes.append(note)
        self._arrived.set()

    async def take(self) -> Sequence[Recorded]:
        """Wait until there are notes, and take them all."""
        await self._arrived.wait()
        self._arrived.clear()
        notes, self._notes = self._notes, []
        return notes

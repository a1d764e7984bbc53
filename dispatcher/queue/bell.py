"""How a node without work learns that there may be some."""

import asyncio

from dispatcher.ports import Clock


class Bell:
    """Rung when work comes in. A ring that nobody waited for is kept for the next to come."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake everyone who waits, or the next one who will."""
        self._rung.set()

    async def wait(self, timeout_s: float) -> None:
        """Return at the next ring, or after `timeout_s`."""
        async with asyncio.TaskGroup() as group:
            alarm = group.create_task(self._ring_after(timeout_s), name="queue-wait-timeout")
            await self._rung.wait()
            alarm.cancel()
        # Cleared by the one who was woken, not by the one who finds work: a caller that waits in a loop
        # must not spin.
        self._rung.clear()

    async def _ring_after(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self.ring()

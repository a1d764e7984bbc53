"""The end of a simulated dispatcher, at its appointed event."""

import asyncio

from dispatcher.testing.simulation.ledger import Ledger
from dispatcher.testing.simulation.life import Life
from dispatcher.testing.simulation.scenario import Death, DeathKind


class Reaper:
    """Ends a life at its appointed event."""

    def __init__(self, life: Life, living: "asyncio.Task[None]", death: Death | None, ledger: Ledger) -> None:
        self._life = life
        self._living = living
        self._death = death
        self._ledger = ledger
        self._draining: asyncio.Task[None] | None = None
        self._last = ledger.events + (death.after_events if death else 0)
        if death is not None:
            ledger.on_event = self._look

    def stop(self) -> None:
        """Let the life be."""
        if self._death is not None:
            self._ledger.on_event = _nothing

    async def last_rites(self) -> None:
        """Wait for what a SIGTERM had started."""
        if self._draining is not None:
            await self._draining

    def _look(self) -> None:
        if self._ledger.events < self._last or self._death is None:
            return
        self.stop()
        self._ledger.note("death", self._life.name, self._death.kind)
        if self._death.kind is DeathKind.DRAINED:
            self._draining = asyncio.get_running_loop().create_task(self._life.drain(), name="drain")
        else:
            self._life.kill()
            self._living.cancel()


def _nothing() -> None:
    """No death is due."""

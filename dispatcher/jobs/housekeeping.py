"""What has to be looked at now and then: who starves, which files are over, what nobody can want any more."""

import asyncio
import shutil

import structlog

from dispatcher.dispatch.node import Node
from dispatcher.errors import DispatcherError
from dispatcher.jobs.files import Files
from dispatcher.jobs.keeper import JobKeeper
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.life import ENDED, Stage
from dispatcher.jobs.places import Places
from dispatcher.ports import Clock

LOOK_S = 1.0
SWEEP_S = 30.0


class Housekeeping:
    """Runs beside the keeper."""

    def __init__(self, keeper: JobKeeper, node: Node, files: Files, places: Places, clock: Clock) -> None:
        self._keeper = keeper
        self._node = node
        self._files = files
        self._places = places
        self._clock = clock
        self._log = structlog.get_logger("dispatcher.jobs")

    async def run(self) -> None:
        """Until cancelled."""
        swept_at = float("-inf")
        while True:
            now = self._clock.now()
            self._note_busy(now)
            if now - swept_at >= SWEEP_S:
                swept_at = now
                await self._sweep()
            await self._clock.sleep(LOOK_S)

    def _note_busy(self, now: float) -> None:
        """A job begins to wait when it comes, or goes on, and not before."""
        busy = {attempt.item.lease.job.id for attempt in self._node.desk.open_attempts()}
        for kept in self._keeper.jobs.values():
            waits = kept.stage is Stage.IN_PROGRESS and not kept.details.paused
            if kept.id in busy or not waits or kept.busy_at is None:
                kept.busy_at = now

    async def _sweep(self) -> None:
        try:
            await self._files.remove_expired()
            for kept in list(self._keeper.jobs.values()):
                if kept.stage in ENDED and not kept.released and not await self._wanted(kept):
                    await self._release(kept)
        except DispatcherError as error:
            self._log.warning("sweep_failed", error=str(error))

    async def _wanted(self, kept: Kept) -> bool:
        """Whether one of its files is still there: its failed requests may be sent again until then."""
        details = kept.details
        for name in (details.output_file_id, details.error_file_id):
            if name is not None and await self._files.get(name, None) is not None:
                return True
        return False

    async def _release(self, kept: Kept) -> None:
        async with kept.lock:
            if kept.stage not in ENDED:
                return
            kept.released = True
            await asyncio.to_thread(shutil.rmtree, self._places.journals_of(kept.id), ignore_errors=True)
            await asyncio.to_thread(self._places.input_of(kept.id).unlink, missing_ok=True)

"""Moves a job from stage to stage: in the queue first, then here, and then the node is told."""

from typing import Any

import msgspec
import structlog

from dispatcher.dispatch.node import Node
from dispatcher.jobs.accounts import Accounts
from dispatcher.jobs.details import Made, TokenDetails, moved, status_of, stored
from dispatcher.jobs.files import Files
from dispatcher.jobs.ids import new_file_id
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.life import ENDED, Event, Stage, move
from dispatcher.jobs.making import made_files
from dispatcher.jobs.roll import Roll
from dispatcher.model import Tally
from dispatcher.ports import Clock
from dispatcher.queue.custody import Custody
from dispatcher.queue.sql import SqlQueue


class Moving:
    """Carries out the moves of jobs, and what goes with each: names of files, their records, the log.

    What is written by a custody raises CustodyLostError once another node has it; see Keeping.
    """

    def __init__(
        self, queue: SqlQueue, node: Node, roll: Roll, accounts: Accounts, files: Files, clock: Clock
    ) -> None:
        self._queue = queue
        self._node = node
        self._roll = roll
        self._accounts = accounts
        self._files = files
        self._clock = clock
        self._log = structlog.get_logger("dispatcher.jobs")

    async def advance(self, kept: Kept, stage: Stage, event: Event, **changes: Any) -> None:
        """Move a job on from a stage, if it is still there."""

        async def decide() -> None:
            if kept.stage is stage:
                await self.make(kept, event, dict(changes), held=kept.held)

        await self._roll.change(kept, decide)

    async def make(self, kept: Kept, event: Event, changes: dict[str, Any], *, held: Custody | None) -> None:
        """Make one move, with these changes of its details. To be called under the job's lock.

        Raises IllegalMoveError where there is no such move, and what `Roll.keep` raises.
        """
        details = moved(kept.details, move(kept.stage, event), self._clock.wall())
        if details.stage in (Stage.FINALIZING, Stage.CANCELLING, Stage.EXPIRING):
            changes |= {"making": Made(new_file_id(), new_file_id()), "paused": False}
        details = msgspec.structs.replace(details, **changes)
        await self._roll.keep(kept, details, held=held, wanted=event is Event.RETRY)
        self._reached(kept)

    async def name_files(self, kept: Kept) -> None:
        """Name the files to be written, anew for each attempt: two never write the same file."""
        async with kept.lock:
            making = Made(new_file_id(), new_file_id())
            await self._roll.keep(kept, msgspec.structs.replace(kept.details, making=making), held=kept.held)

    async def conclude(self, kept: Kept, tally: Tally, token_details: TokenDetails) -> None:
        """The outcomes are written: they are files now, and those of an earlier end are no more."""
        made = await made_files(kept, tally, self._files)
        async with kept.lock:
            before = kept.details
            details = msgspec.structs.replace(
                moved(before, move(before.stage, Event.WRITTEN), self._clock.wall()),
                making=None,
                result=tally,
                token_details=token_details,
                output_file_id=made[0].id if tally.succeeded else None,
                error_file_id=made[-1].id if tally.failed else None,
            )
            gone = [name for name in (before.output_file_id, before.error_file_id) if name is not None]
            written = stored(details)
            await self._queue.keeping.conclude(
                kept.id,
                status_of(details),
                written,
                made=made,
                gone=gone,
                before=kept.known,
                held=kept.held,
            )
            kept.known, kept.details = written, details
            self._reached(kept)
        for name in gone:
            await self._files.remove(name)

    def _reached(self, kept: Kept) -> None:
        self._roll.moves += 1
        self._log.info("job_moved", job=kept.id, stage=kept.stage.value)
        self._accounts.expect(kept)
        if kept.stage in ENDED:
            self._node.ledger.forget(kept.id)
            self._node.welcome(kept.id)

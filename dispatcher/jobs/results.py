"""The lines that a job has finished so far: from its journals, or from its files once it has ended."""

from collections.abc import AsyncIterator

from dispatcher.jobs.archive import Archive
from dispatcher.jobs.files import Files
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.life import ENDED
from dispatcher.queue.sql import SqlQueue


async def finished_lines(kept: Kept, queue: SqlQueue, archive: Archive, files: Files) -> AsyncIterator[bytes]:
    """Whole lines, newlines included, some at a time: at most a shard's. Raises StorageError.

    What is finished while this goes on may be there or not; no line is there twice.
    """
    details = kept.details
    if kept.stage in ENDED:
        for name in (details.output_file_id, details.error_file_id):
            if name is not None:
                async for chunk in files.chunks(name):
                    yield chunk
        return
    async for record in queue.shards(kept.id):
        epoch = None if record.tally is None else record.epoch
        outcomes = (await archive.contents(kept.job, record.shard, epoch)).outcomes
        if lines := b"".join(outcomes[index].line + b"\n" for index in sorted(outcomes)):
            yield lines

"""The lines that a job has finished so far: from its journals, or from its files once it has ended."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from dispatcher.jobs.kept import Kept
from dispatcher.jobs.life import ENDED
from dispatcher.jobs.places import Places
from dispatcher.model import Job, Shard
from dispatcher.queue.sql import SqlQueue
from dispatcher.results.journal import journal_path, read_journal

CHUNK_BYTES = 1 << 20


async def finished_lines(kept: Kept, queue: SqlQueue, places: Places) -> AsyncIterator[bytes]:
    """Whole lines, newlines included, some at a time: at most a shard's. Raises StorageError.

    What is finished while this goes on may be there or not; no line is there twice.
    """
    details = kept.details
    if kept.stage in ENDED:
        for name in (details.output_file_id, details.error_file_id):
            if name is not None:
                async for chunk in _chunks(places.file(name)):
                    yield chunk
        return
    async for record in queue.shards(kept.id):
        if lines := await asyncio.to_thread(_lines, kept.job, record.shard, places.journals):
            yield lines


def _lines(job: Job, shard: Shard, journals: Path) -> bytes:
    contents = read_journal(journal_path(journals, job, shard), shard)
    return b"".join(contents.outcomes[index].line + b"\n" for index in sorted(contents.outcomes))


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except FileNotFoundError:  # it was deleted
        return
    try:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk
    finally:
        file.close()

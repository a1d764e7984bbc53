"""A finished job's journals, wherever they come from, joined into two streams in input order."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from typing import Final

from dispatcher.model import Job, Outcome, Shard, Tally
from dispatcher.ports import Incoming
from dispatcher.results.finalise import completed, lines_of
from dispatcher.results.journal import JournalContents, owed

AHEAD: Final = 8
"""Journals read before they are needed: a store takes a tenth of a second for each, whatever its size."""

Journals = AsyncGenerator[tuple[Shard, JournalContents], None]
MadeUp = Callable[[Shard, AbstractSet[int]], Awaitable[Sequence[Outcome]]]
"""The outcomes of a shard's requests, by index, that have none."""


async def join(
    job: Job,
    journals: Journals,
    output: Incoming,
    errors: Incoming,
    made_up: MadeUp | None,
    reader: Callable[[bytes], None],
) -> Tally:
    """Write a job's outcomes to two streams, neither of which is kept yet. Memory holds a few shards.

    `reader` is shown each line of the output, in a thread. Raises StateError where an outcome is missing and
    is not made up; StorageError.
    """
    tally = Tally()
    async with aclosing(journals):
        async for shard, contents in journals:
            missing = set(owed(shard)) - contents.outcomes.keys()
            made = await made_up(shard, missing) if missing and made_up is not None else ()
            whole = completed(job, shard, contents, "its journal in the store", lambda *_, made=made: made)
            successes, failures = await asyncio.to_thread(_rendered, whole, reader)
            await output.write(successes)
            await errors.write(failures)
            tally += whole.tally
    return tally


async def ahead(
    shards: AsyncIterator[tuple[Shard, int | None]],
    read: Callable[[Shard, int | None], Awaitable[JournalContents]],
) -> Journals:
    """Each shard's journal, in order, while the next `AHEAD` are being read."""
    reading: deque[tuple[Shard, asyncio.Task[JournalContents]]] = deque()
    try:
        async for shard, epoch in shards:
            reading.append((shard, asyncio.ensure_future(read(shard, epoch))))
            if len(reading) > AHEAD:
                yield await _first(reading)
        while reading:
            yield await _first(reading)
    finally:
        for _, task in reading:
            task.cancel()
        await asyncio.gather(*(task for _, task in reading), return_exceptions=True)


async def _first(
    reading: deque[tuple[Shard, "asyncio.Task[JournalContents]"]],
) -> tuple[Shard, JournalContents]:
    shard, task = reading[0]
    contents = await task
    reading.popleft()
    return shard, contents


def _rendered(contents: JournalContents, reader: Callable[[bytes], None]) -> tuple[bytes, bytes]:
    for record in contents.outcomes.values():
        if record.ok:
            reader(record.line)
    return lines_of(contents)

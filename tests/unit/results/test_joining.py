import asyncio

import pytest

from dispatcher.errors import StateError, StorageError
from dispatcher.model import ErrorCode, Outcome, Tally
from dispatcher.results.joining import AHEAD, ahead, join
from dispatcher.results.journal import encode_record, parse_journal


class Stream:
    def __init__(self):
        self.content = b""

    async def write(self, piece):
        self.content += piece


class Journals:
    """Journals that are read as fast or as slowly as they are told to be."""

    def __init__(self, samples, count, *, without=()):
        self.samples, self.without = samples, without
        self.shards = [samples.shard(number) for number in range(count)]
        self.reading, self.reading_most, self.cancelled = 0, 0, 0
        self.slow, self.stuck, self.broken = set(), set(), None

    async def of_queue(self):
        for shard in self.shards:
            yield shard, 7

    async def read(self, shard, epoch):
        assert epoch == 7
        self.reading += 1
        self.reading_most = max(self.reading_most, self.reading)
        try:
            if shard.number in self.stuck:
                await asyncio.Event().wait()
            for _ in range(20 if shard.number in self.slow else 1):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.reading -= 1
        if shard.number == self.broken:
            raise StorageError("gone")
        return parse_journal(b"".join(self.records(shard)), shard)

    def records(self, shard):
        for index in reversed(range(shard.first_index, shard.first_index + shard.count)):
            if index in self.without:
                continue
            failed = index % 5 == 4
            outcome = self.samples.failure(index) if failed else self.samples.success(index)
            yield encode_record(outcome, self.samples.job)


async def joined(journals, made_up=None, lines=None):
    output, errors = Stream(), Stream()
    read = [] if lines is None else lines
    tally = await join(
        journals.samples.job, ahead(journals.of_queue(), journals.read), output, errors, made_up, read.append
    )
    return tally, rows_of(output), rows_of(errors)


def rows_of(stream):
    return [int(line.split(b'"row-')[1].split(b'"')[0]) for line in stream.content.split(b"\n")[:-1]]


async def test_lines_are_in_input_order_however_the_journals_come(samples):
    journals, lines = Journals(samples, 40), []
    journals.slow = {0, 3, 17, 39}
    tally, output, errors = await joined(journals, lines=lines)
    assert output == [index for index in range(160) if index % 5 != 4]
    assert errors == list(range(4, 160, 5))
    assert (tally.succeeded, tally.failed, len(lines)) == (128, 32, 128)


async def test_no_more_journals_are_in_memory_than_are_read_ahead(samples):
    journals = Journals(samples, 40)
    journals.slow = {0}
    await joined(journals)
    assert 2 <= journals.reading_most <= AHEAD + 1


async def test_what_has_no_outcome_is_made_up_where_it_may_be_and_else_an_error(samples):
    journals = Journals(samples, 2, without={1, 6})

    async def made_up(shard, missing):
        return [Outcome(index, f"row-{index}", ErrorCode.BATCH_CANCELLED, "cancelled") for index in missing]

    tally, output, errors = await joined(journals, made_up)
    assert (output, errors) == ([0, 2, 3, 5, 7], [1, 4, 6])
    assert tally.errors == {"batch_cancelled": 2, "timeout": 1}
    with pytest.raises(StateError, match=r"shard 0 is not finished: .* request 1;"):
        await joined(journals)


async def test_a_journal_that_cannot_be_read_ends_it_and_leaves_nobody_reading(samples):
    journals = Journals(samples, 40)
    journals.broken, journals.slow = 2, {3, 4, 5, 6, 7}
    with pytest.raises(StorageError, match="gone"):
        await joined(journals)
    assert journals.reading == 0


async def test_a_stream_that_refuses_ends_it_and_leaves_nobody_reading(samples):
    journals, refusing = Journals(samples, 40), Stream()
    journals.stuck = set(range(1, 40))

    async def refuse(_):
        raise StorageError("refused")

    refusing.write = refuse
    with pytest.raises(StorageError, match="refused"):
        await join(samples.job, ahead(journals.of_queue(), journals.read), refusing, Stream(), None, len)
    assert (journals.reading, journals.cancelled) == (0, AHEAD)


async def test_a_job_without_shards_has_no_lines(samples):
    assert await joined(Journals(samples, 0)) == (Tally(), [], [])

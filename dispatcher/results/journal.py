"""A shard's journal: an append-only file of outcomes, and what of it survives a crash.

A record is one line of tab-separated fields:

    checksum  index  mark  prompt_tokens  completion_tokens  line

`checksum` is the CRC-32 of everything behind it, as 8 lower-case hex digits; `mark` is `ok` or the error
code; `line` is the output line. With the checksum a record is either whole or not there: neither a torn
write nor a flipped bit can pass for an answer, and a mark that this version does not know is told from a
damaged one. Such a record is kept, but is no outcome. Nor is a `death`, which says in its line what is held
against a request that was running when servers died. The token counts stand in the record because the
server's own account of them differs from route to route, and was understood once already.
"""

import contextlib
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.model import NO_TOKENS, ErrorCode, Grudge, Job, Outcome, Shard, Tally, Tokens
from dispatcher.results.disk import replace_file, storage_errors, sync_folder
from dispatcher.results.lines import encode_outcome, names

_OK: Final = "ok"
_DEATH: Final = "death"
_FAILURES: Final = frozenset(code.value for code in ErrorCode)
_SHARDS_PER_FOLDER: Final = 1000
_UNREADABLE: Final = "make it readable, or move it away: its requests are then sent again"


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record of a journal."""

    index: int
    mark: str
    """`ok`, an ErrorCode's value, or a kind of record that a newer version writes."""
    tokens: Tokens
    line: bytes

    @property
    def ok(self) -> bool:
        """Whether this is a success."""
        return self.mark == _OK

    @property
    def failed(self) -> bool:
        """Whether this is an error outcome."""
        return self.mark in _FAILURES

    @property
    def is_death(self) -> bool:
        """Whether this says what is held against a request."""
        return self.mark == _DEATH

    def encode(self) -> bytes:
        """The record's bytes, newline included."""
        tokens = self.tokens
        fields = f"{self.index}\t{self.mark}\t{tokens.prompt}\t{tokens.completion}\t".encode()
        checksum = zlib.crc32(self.line, zlib.crc32(fields))
        return b"%08x\t%b%b\n" % (checksum, fields, self.line)


@dataclass(frozen=True, slots=True)
class JournalContents:
    """What a journal holds."""

    records: tuple[Record, ...]
    """The records worth keeping, in file order: whole, of this shard, and an index's first outcome only."""
    dropped: int
    """Lines that are none of those."""
    clean: bool
    """Whether the file is just these records, so that more can be appended."""

    @property
    def length(self) -> int:
        """Bytes of the kept records: the file's length where it is clean."""
        return sum(len(record.encode()) for record in self.records)

    @property
    def outcomes(self) -> dict[int, Record]:
        """The outcomes by index."""
        return {record.index: record for record in self.records if record.ok or record.failed}

    @property
    def grudges(self) -> dict[int, Grudge]:
        """What is held against requests without an outcome, by index: the last word counts."""
        outcomes = self.outcomes
        deaths = (record for record in self.records if record.is_death and record.index not in outcomes)
        grudges = {record.index: _read_grudge(record.line) for record in deaths}
        return {index: grudge for index, grudge in grudges.items() if grudge is not None}

    @property
    def tally(self) -> Tally:
        """What the outcomes add up to."""
        outcomes = self.outcomes.values()
        errors = Counter(record.mark for record in outcomes if record.failed)
        return Tally(
            succeeded=len(outcomes) - errors.total(),
            failed=errors.total(),
            prompt_tokens=sum(record.tokens.prompt for record in outcomes),
            completion_tokens=sum(record.tokens.completion for record in outcomes),
            errors=dict(sorted(errors.items())),
        )


def journal_path(directory: Path, job: Job, shard: Shard) -> Path:
    """Where a shard's journal lies: `<directory>/<job>/000/000123.journal`, 1,000 shards a folder."""
    folder = f"{shard.number // _SHARDS_PER_FOLDER:03}"
    return directory / job.id / folder / f"{shard.number:06}.journal"


def encode_record(outcome: Outcome, job: Job) -> bytes:
    """The bytes to append to a journal for an outcome, newline included."""
    return record_of(outcome, job).encode()


def record_of(outcome: Outcome, job: Job) -> Record:
    """An outcome as a record."""
    mark = _OK if outcome.code is None else outcome.code.value
    return Record(outcome.index, mark, outcome.tokens, encode_outcome(outcome, job))


def encode_grudge(index: int, grudge: Grudge) -> bytes:
    """The bytes to append to a journal for what is held against a request, newline included."""
    return Record(index, _DEATH, NO_TOKENS, msgspec.json.encode(grudge)).encode()


def read_journal(
    path: Path, shard: Shard, custom_ids: Mapping[int, str] | None = None, *, advice: str = ""
) -> JournalContents:
    """Read a shard's journal; a missing one is empty. Changes nothing.

    Args:
        path: The journal.
        shard: Whose it is: records of other indexes are dropped.
        custom_ids: The shard's requests by index. A record that names another is dropped. None: unchecked.
        advice: What to do about a file that cannot be read.

    Raises StorageError where the file cannot be read; never for what it holds.
    """
    data = b""
    with storage_errors(f"cannot read {path}", advice), contextlib.suppress(FileNotFoundError):
        data = path.read_bytes()
    return parse_journal(data, shard, custom_ids)


def repair_journal(path: Path, shard: Shard, custom_ids: Mapping[int, str] | None = None) -> JournalContents:
    """Read a shard's journal and make the file clean and durable, so that it can be appended to.

    A damaged file is replaced as a whole, atomically. A clean one is synced: what a killed process wrote may
    still be in memory only. Takes what `read_journal` takes. Raises StorageError.
    """
    contents = read_journal(path, shard, custom_ids, advice=_UNREADABLE)
    with storage_errors(f"cannot write {path}"):
        if not contents.clean:
            replace_journal(path, contents.records)
        elif contents.records:
            _sync(path)
    return contents


def replace_journal(path: Path, records: Iterable[Record]) -> None:
    """Make a journal hold just these records, atomically and durably. Raises OSError."""
    replace_file(path, b"".join(record.encode() for record in records))


def parse_journal(data: bytes, shard: Shard, custom_ids: Mapping[int, str] | None = None) -> JournalContents:
    """What a journal's bytes hold. Takes any bytes at all; see `read_journal`."""
    *lines, tail = data.split(b"\n")
    if tail:
        lines.append(tail)
    records = tuple(_worth_keeping(lines, shard, custom_ids))
    dropped = len(lines) - len(records)
    return JournalContents(records, dropped, clean=not dropped and not tail)


def without_failures(records: Iterable[Record]) -> list[Record]:
    """The records but the failed outcomes, and but what was held against their requests."""
    kept = list(records)
    failed = {record.index for record in kept if record.failed}
    return [record for record in kept if not (record.failed or (record.is_death and record.index in failed))]


def owed(shard: Shard) -> Iterator[int]:
    """The indexes that a shard owes an outcome for, ascending."""
    rejected = frozenset(shard.rejected)
    last = shard.first_index + shard.count
    return (index for index in range(shard.first_index, last) if index not in rejected)


def _worth_keeping(
    lines: Iterable[bytes], shard: Shard, custom_ids: Mapping[int, str] | None
) -> Iterator[Record]:
    missing = set(owed(shard))
    belonging = frozenset(missing)
    for line in lines:
        record = _parse(line)
        if record is None or record.index not in belonging:
            continue
        if not (record.ok or record.failed):
            yield record
        elif record.index in missing and _is_answer_to(record, custom_ids):
            missing.discard(record.index)
            yield record


def _is_answer_to(record: Record, custom_ids: Mapping[int, str] | None) -> bool:
    if custom_ids is None:
        return True
    custom_id = custom_ids.get(record.index)
    return custom_id is not None and names(record.line, custom_id)


_GRUDGE: Final = msgspec.json.Decoder(Grudge)


def _read_grudge(line: bytes) -> Grudge | None:
    """None where another version has written it otherwise."""
    with contextlib.suppress(msgspec.DecodeError):
        return _GRUDGE.decode(line)
    return None


def _parse(line: bytes) -> Record | None:
    checksum, _, content = line.partition(b"\t")
    if checksum != b"%08x" % zlib.crc32(content):
        return None
    with contextlib.suppress(ValueError):
        index, mark, prompt, completion, output = content.split(b"\t", 4)
        return Record(int(index), mark.decode(), Tokens(int(prompt), int(completion)), output)
    return None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(path.parent)

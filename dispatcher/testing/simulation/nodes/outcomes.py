"""A job's outcomes, of the leases that settled its shards: held against the files that are made of them."""

from collections.abc import Sequence
from pathlib import Path

from dispatcher.model import Job, Lease, Shard
from dispatcher.results.checkpoints import key_of
from dispatcher.results.finalise import completed, lines_of
from dispatcher.results.journal import JournalContents, journal_path, owed, parse_journal, read_journal
from dispatcher.testing.simulation.ledger import Ledger
from dispatcher.testing.simulation.nodes.store import Objects


class Outcomes:
    """What every shard held at the instant when the queue took it as settled.

    Args:
        job: Whose they are.
        objects: The store's.
        journals: Where the journals are instead, if all nodes are on one machine.
        ledger: Told of breaches.
    """

    def __init__(self, job: Job, objects: Objects, journals: Path | None, ledger: Ledger) -> None:
        self._job = job
        self._objects = objects
        self._journals = journals
        self._ledger = ledger
        self._epochs: dict[int, int] = {}
        self._settled: dict[int, tuple[bytes, bytes]] = {}

    def settled(self, lease: Lease) -> None:
        """The queue takes a shard as settled by this lease: all its outcomes must be safe by now."""
        number = lease.shard.number
        if number in self._epochs:
            return
        self._epochs[number] = lease.epoch
        contents = self._read(lease.shard, lease.epoch)
        missing = set(owed(lease.shard)) - contents.outcomes.keys()
        self._ledger.require(
            not missing, f"shard {number} was settled by epoch {lease.epoch} without rows {sorted(missing)}"
        )
        self._settled[number] = lines_of(contents)

    def write(self, shards: Sequence[Shard], output: Path, errors: Path) -> None:
        """Make the job's files, of each shard's settling lease. Raises StateError where a row is missing."""
        lines = [self._lines(shard) for shard in shards]
        output.write_bytes(b"".join(successes for successes, _ in lines))
        errors.write_bytes(b"".join(failures for _, failures in lines))

    def _lines(self, shard: Shard) -> tuple[bytes, bytes]:
        contents = self._read(shard, self._epochs.get(shard.number, 0))
        lines = lines_of(completed(self._job, shard, contents, f"shard {shard.number}"))
        same = lines == self._settled.get(shard.number)
        self._ledger.require(same, f"shard {shard.number} has changed since it was settled")
        return lines

    def _read(self, shard: Shard, epoch: int) -> JournalContents:
        if self._journals is not None:
            return read_journal(journal_path(self._journals, self._job, shard), shard)
        key = key_of(self._job.id, shard.number, epoch)
        found = self._objects.find(key)
        return parse_journal(b"" if found is None else self._objects.read(key), shard)

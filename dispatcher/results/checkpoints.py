"""Journals in a store: one object for each lease of a shard, named by its epoch.

    journals/<job>/000/000123/000007            what the lease of epoch 7 has recorded
    journals/<job>/000/000123/000007.reopened   that, without its failures, which are sent again

A shard's epochs lie in a folder of their own, so that one listing shows them and nothing else.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dispatcher.errors import LeaseLostError, MissingError, TakenError
from dispatcher.model import Job, JobId, Lease, Shard
from dispatcher.ports import Store
from dispatcher.results.journal import parse_journal, without_failures

FOLDER: Final = "journals"
_SHARDS_PER_FOLDER: Final = 1000
_KEY: Final = re.compile(r"journals/([^/]+)/[0-9]+/([0-9]+)/([0-9]+)(\.reopened)?")
_LOOKS_MAX: Final = 5
_DELETED_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One journal in the store."""

    key: str
    job: JobId
    number: int
    """The shard's."""
    epoch: int
    reopened: bool

    @property
    def age(self) -> tuple[int, bool]:
        """Of a shard's, the latest one has the greatest."""
        return self.epoch, self.reopened


def checkpoint_of(key: str) -> Checkpoint | None:
    """What a key of the store stands for; None where it is no journal."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    return Checkpoint(key, JobId(found[1]), int(found[2]), int(found[3]), reopened=found[4] is not None)


def folder_of(job: JobId) -> str:
    """Where a job's journals are."""
    return f"{FOLDER}/{job}"


def key_of(job: JobId, shard: int, epoch: int) -> str:
    """The key of what a lease of this epoch records."""
    return f"{_shard_folder(job, shard)}/{epoch:06}"


class Checkpoints:
    """The journals in a store. Every method raises StorageError as the store does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def earlier(self, lease: Lease) -> tuple[Checkpoint, bytes] | None:
        """What the latest of the earlier leases has left of the shard, and what it holds; None for nothing.

        Raises LeaseLostError where this lease, or a later one, has left something.
        """
        if lease.epoch == 1:
            return None
        found = await self.latest(lease.job.id, lease.shard)
        if found is not None and found[0].epoch >= lease.epoch:
            raise LeaseLostError(
                f"shard {lease.shard.number} of job {lease.job.id}: epoch {found[0].epoch} has recorded"
                f" outcomes already; this is epoch {lease.epoch}"
            )
        return found

    async def put(self, lease: Lease, content: bytes, version: str | None) -> str:
        """Write a lease's journal in place of the `version` that it wrote last; return the new one's.

        A version that is not known is no matter as long as what is there is the beginning of what is
        written: it was ourselves, and the store's answer was lost. Raises LeaseLostError where it is anything
        else: two nodes believe to have the same lease.
        """
        key = key_of(lease.job.id, lease.shard.number, lease.epoch)
        try:
            try:
                return await self._store.put(key, content, version)
            except TakenError:
                ours = await self._version_of_a_beginning(key, content)
                if ours is None:
                    raise
                return await self._store.put(key, content, ours)
        except TakenError as error:
            raise LeaseLostError(
                f"shard {lease.shard.number} of job {lease.job.id}: another node has written its journal of"
                f" epoch {lease.epoch}"
            ) from error

    async def settled(self, job: JobId, shard: int, epoch: int) -> bytes:
        """The journal of the lease that settled a shard. Raises MissingError where it is not there."""
        return await self._store.read(key_of(job, shard, epoch))

    async def take_back_failures(self, job: Job, shard: Shard, epoch: int) -> None:
        """Take a shard's failed outcomes back, so that their requests are sent again.

        `epoch` is that of the last lease, which must be over. Done again it changes nothing. Written even
        where nothing failed: a node that still has a longer copy of its own is not to go on with that.
        """
        found = await self.latest(job.id, shard)
        if found is not None and found[0].reopened and found[0].epoch == epoch:
            return
        records = () if found is None else parse_journal(found[1], shard).records
        data = b"".join(record.encode() for record in without_failures(records))
        key = f"{key_of(job.id, shard.number, epoch)}.reopened"
        try:
            await self._store.put(key, data)
        except TakenError:  # by ourselves, before a kill
            return

    async def latest(self, job: JobId, shard: Shard) -> tuple[Checkpoint, bytes] | None:
        """The latest of a shard's journals, and what it holds; None for nothing."""
        # Looks again where what was listed is gone: whoever wrote the next one has removed it.
        for look in range(_LOOKS_MAX):
            listed = [stored async for stored in self._store.list(_shard_folder(job, shard.number))]
            found = [found for stored in listed if (found := checkpoint_of(stored.key)) is not None]
            if not found:
                return None
            latest = max(found, key=lambda each: each.age)
            try:
                return latest, await self._store.read(latest.key)
            except MissingError:
                if look == _LOOKS_MAX - 1:
                    raise
        return None

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove some."""
        await self._store.delete(keys)

    async def delete_all(self, job: JobId) -> None:
        """Remove every journal of a job."""
        keys: list[str] = []
        async for stored in self._store.list(folder_of(job)):
            keys.append(stored.key)
            if len(keys) == _DELETED_AT_ONCE:
                await self._store.delete(keys)
                keys.clear()
        await self._store.delete(keys)

    async def _version_of_a_beginning(self, key: str, content: bytes) -> str | None:
        found = await self._store.find(key)
        if found is None or not content.startswith(await self._store.read(key)):
            return None
        return found.version


def _shard_folder(job: JobId, number: int) -> str:
    return f"{folder_of(job)}/{number // _SHARDS_PER_FOLDER:03}/{number:06}"

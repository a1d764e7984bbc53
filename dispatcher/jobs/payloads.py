"""Requests of every job, each from its own input."""

from collections.abc import Sequence

from dispatcher.ingest.payloads import FilePayloads
from dispatcher.jobs.places import Places
from dispatcher.model import Lease, Request


class JobPayloads:
    """`ports.Payloads` over the storage directory's inputs."""

    def __init__(self, places: Places) -> None:
        self._places = places

    async def read(self, lease: Lease) -> Sequence[Request]:
        """See Payloads. Raises StorageError where the job's input cannot be read, or has changed."""
        return await FilePayloads(self._places.input_of(lease.job.id)).read(lease)

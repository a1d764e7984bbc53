"""Requests of every job, each from its own input."""

from collections.abc import Sequence

import structlog

from dispatcher.errors import LeaseLostError, StorageError
from dispatcher.ingest.payloads import FilePayloads
from dispatcher.jobs.places import Places
from dispatcher.model import Lease, Request


class JobPayloads:
    """`ports.Payloads` over the storage directory's inputs."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._log = structlog.get_logger("dispatcher.jobs")

    async def read(self, lease: Lease) -> Sequence[Request]:
        """See Payloads.

        Raises LeaseLostError where the input cannot be read, or has changed: one job's damaged input must not
        end the service. Its shard is left to expire, and tried again when it is leased anew.
        """
        try:
            return await FilePayloads(self._places.input_of(lease.job.id)).read(lease)
        except StorageError as error:
            self._log.error("input_unreadable", job=lease.job.id, error=str(error))
            raise LeaseLostError(str(error)) from error

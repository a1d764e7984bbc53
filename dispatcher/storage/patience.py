"""Requests to a store that is not available are sent again here, and nowhere else."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeVar

import structlog

from dispatcher.errors import UnavailableError
from dispatcher.ports import Clock

PATIENCE_S: Final = 30.0
"""How long one request is sent again before its failure is told."""
BACKOFF_MIN_S: Final = 0.2
BACKOFF_MAX_S: Final = 5.0
OUTAGE_S: Final = 5.0
"""A store that has refused everything for so long is out of service: before that it is only slow."""

_Result = TypeVar("_Result")


class Patience:
    """Sends requests again with full jitter, and knows whether the store is out of service.

    An outage is logged when it is one, and when it is over: once each, however many requests fail.
    """

    def __init__(self, name: str, clock: Clock, random: Random, patience_s: float = PATIENCE_S) -> None:
        self._name = name
        self._clock = clock
        self._random = random
        self._patience_s = patience_s
        self._failing_since: float | None = None
        self._reason: str | None = None
        self._told = False
        self._log = structlog.get_logger("dispatcher.storage")

    @property
    def obstacle(self) -> str | None:
        """Why the store is out of service, or None."""
        since = self._failing_since
        return None if since is None or self._clock.now() - since < OUTAGE_S else self._reason

    async def keep_trying(self, request: Callable[[], Awaitable[_Result]]) -> _Result:
        """What the request returns. Raises UnavailableError where it has failed for `patience_s`."""
        until, backoff_s = self._clock.now() + self._patience_s, BACKOFF_MIN_S
        while True:
            try:
                result = await request()
            except UnavailableError as error:
                self._failed(error)
                pause_s = self._random.uniform(0, backoff_s)
                if self._clock.now() + pause_s > until:
                    raise
            else:
                self._worked()
                return result
            await self._clock.sleep(pause_s)
            backoff_s = min(BACKOFF_MAX_S, 2 * backoff_s)

    def _failed(self, error: UnavailableError) -> None:
        now = self._clock.now()
        self._reason = str(error)
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= OUTAGE_S and not self._told:
            self._told = True
            self._log.error("store_unavailable", store=self._name, error=self._reason)

    def _worked(self) -> None:
        if self._told and self._failing_since is not None:
            seconds = round(self._clock.now() - self._failing_since, 1)
            self._log.info("store_available", store=self._name, seconds=seconds)
        self._failing_since, self._told = None, False

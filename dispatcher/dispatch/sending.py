"""Attempts under way: one task each, from the permit that was taken to the ending that is judged."""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Iterable

from dispatcher.dispatch.attempt import Attempt
from dispatcher.dispatch.desk import Desk
from dispatcher.model import Answer, Break, Ending, JobId, Request
from dispatcher.pool.server import Server
from dispatcher.ports import Transport, Wording

SERVICE_UNAVAILABLE = 503


class Sending:
    """Sends attempts and reports how each ended.

    Args:
        desk: Where permits are given back; closed should anything here fail.
        transport: The data plane.
        wording: Puts a request as its server understands it; None: all of them as they are.
        healthy: What a server's `/health` says now.
        sent: Told of every attempt that goes out, in its task.
        ended: Told of every attempt's ending, and of what `/health` said where that was asked.
    """

    def __init__(
        self,
        desk: Desk,
        transport: Transport,
        wording: Wording | None,
        healthy: Callable[[Server], Awaitable[bool | None]],
        sent: Callable[[Attempt], None],
        ended: Callable[[Attempt, Ending, bool | None], None],
    ) -> None:
        self._desk = desk
        self._transport = transport
        self._wording = wording
        self._healthy = healthy
        self._sent = sent
        self._ended = ended
        self._under_way: dict[Attempt, asyncio.Task[None]] = {}
        self._request_ids = map(f"{secrets.token_hex(4)}-{{:x}}".format, itertools.count())

    def start(self, attempts: Iterable[Attempt], tasks: asyncio.TaskGroup) -> None:
        """Send these, as tasks of the group."""
        for attempt in attempts:
            self._under_way[attempt] = tasks.create_task(self._send(attempt), name="attempt")

    def close(self, attempt: Attempt, ending: Break) -> None:
        """Close an open attempt. One whose task has not run yet must not be cancelled: it would never run."""
        if attempt.given_up is None:
            attempt.given_up = ending
            if attempt.begun:
                self._under_way[attempt].cancel()

    def of_job(self, job: JobId) -> list[Attempt]:
        """Attempts of a job that are not judged yet."""
        return [attempt for attempt in self._under_way if attempt.item.lease.job.id == job]

    def stop(self) -> None:
        """End all at once, unjudged. May be called again."""
        for task in self._under_way.values():
            task.cancel()

    def forget(self) -> None:
        """All tasks have ended: give back the permits of those that were cancelled before they first ran."""
        for attempt in self._desk.open_attempts():
            self._desk.release(attempt)
        self._under_way.clear()

    async def _send(self, attempt: Attempt) -> None:
        try:
            ending = await self._post(attempt)
            self._ended(attempt, ending, await self._health(attempt, ending))
        except BaseException:  # no task can be started any more: send nothing
            self._desk.closed = True
            raise
        finally:
            del self._under_way[attempt]
            if attempt.span is not None:
                attempt.span.end(None)

    async def _post(self, attempt: Attempt) -> Ending:
        """The permit is held only while the request is at the server."""
        try:
            if attempt.given_up is not None:
                return attempt.given_up
            attempt.begun = True
            attempt.request_id = next(self._request_ids)
            self._sent(attempt)
            return await self._transport.send(
                attempt.server.spec,
                self._worded(attempt),
                attempt.request_id,
                attempt.item.lease.job.request_timeout_s,
            )
        except asyncio.CancelledError:
            if (closed := _closed(attempt)) is None:
                raise
            return closed
        finally:
            self._desk.release(attempt)

    def _worded(self, attempt: Attempt) -> Request:
        request = attempt.request
        return request if self._wording is None else self._wording(request, attempt.server.version)

    async def _health(self, attempt: Attempt, ending: Ending) -> bool | None:
        """What `/health` says, asked only where a 503 leaves doubt."""
        if type(ending) is not Answer or ending.status != SERVICE_UNAVAILABLE:
            return None
        try:
            return await self._healthy(attempt.server)
        except asyncio.CancelledError:
            if _closed(attempt) is None:
                raise
            return None


def _closed(attempt: Attempt) -> Break | None:
    """How the attempt is to end, where `close` and nothing else has cancelled its task: that is over then."""
    task = asyncio.current_task()
    ours = attempt.given_up is not None and task is not None and task.uncancel() == 0
    return attempt.given_up if ours else None

"""The requests that a fake server holds, and the log of those it has seen."""

import asyncio
import re
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from dispatcher.testing import refusals
from dispatcher.testing.faults import Arrival, Die


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request that reached the server."""

    marker: str
    """What the settings' `marker` found in the body, or nothing."""
    request_id: str
    """Its X-Request-Id, or nothing."""
    route: str
    arrived_at: float
    """Seconds of the event loop's clock."""
    reused: bool
    """Whether its connection had carried a request before."""
    in_flight: int
    """Other requests in flight when it came."""
    traceparent: str = ""
    """Its W3C trace context, or nothing."""


class EngineDeadError(Exception):
    """The engine died under a request."""

    def __init__(self, die: Die) -> None:
        super().__init__(die)
        self.die = die


@dataclass(slots=True, eq=False)
class Flight:
    """One request between its arrival and its answer."""

    number: int
    request: web.BaseRequest
    ended: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done when the engine is; raises EngineDeadError where it died first."""
    severed: bool = False
    """Whether it was we who ended the connection."""

    def finish(self) -> None:
        """The engine is done."""
        if not self.ended.done():
            self.ended.set_result(None)

    def doom(self, die: Die) -> None:
        """The engine is dead."""
        if not self.ended.done():
            self.ended.set_exception(EngineDeadError(die))
            self.ended.exception()  # a handler that is about to end need not look

    async def pause(self, seconds: float) -> None:
        """Let the time pass. Raises EngineDeadError as soon as the engine dies."""
        if seconds > 0:
            await asyncio.wait({self.ended}, timeout=seconds)
        if self.ended.done():
            self.ended.result()


class Flights:
    """All requests in flight, with the figures that tests ask for."""

    def __init__(self, marker: str, log_max: int) -> None:
        self.log: deque[RequestRecord] = deque(maxlen=log_max)
        self.peak = 0
        self.disconnects = 0
        self._marker = re.compile(marker.encode())
        self._open: dict[int, Flight] = {}
        self._ids: set[str] = set()
        self._number = 0
        self._landed: asyncio.Event = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def open(self, request: web.BaseRequest, arrival: Arrival) -> Iterator[Flight]:
        """Log a request and hold it. Raises RefusalError where its id is that of one still open."""
        request_id = request.headers.get("X-Request-Id", "")
        self._write(request, request_id, arrival)
        with self._claimed(request_id):
            self._number += 1
            flight = self._open[self._number] = Flight(self._number, request)
            self.peak = max(self.peak, len(self._open))
            try:
                yield flight
            except asyncio.CancelledError:
                self.disconnects += not flight.severed
                raise
            finally:
                del self._open[flight.number]
                self._landed.set()

    def doom(self, die: Die) -> None:
        """The engine dies under all of them."""
        for flight in self._open.values():
            flight.severed = True
            flight.doom(die)

    def sever(self) -> None:
        """Their connections are about to end, by our own doing."""
        for flight in self._open.values():
            flight.severed = True

    def connections(self) -> Collection[web.RequestHandler]:
        """The connections that carry them."""
        return {flight.request.protocol for flight in self._open.values()}

    async def landed(self, timeout_s: float) -> None:
        """Wait until none is in flight, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._open:
                    self._landed.clear()
                    await self._landed.wait()
        except TimeoutError:
            return

    @contextmanager
    def _claimed(self, request_id: str) -> Iterator[None]:
        """The id, taken for as long as the request is open."""
        if request_id in self._ids:
            raise refusals.repeated_request_id(request_id)
        if not request_id:
            yield
            return
        self._ids.add(request_id)
        try:
            yield
        finally:
            self._ids.discard(request_id)

    def _write(self, request: web.BaseRequest, request_id: str, arrival: Arrival) -> None:
        found = self._marker.search(arrival.body)
        marker = found[0].decode(errors="replace") if found else ""
        now = asyncio.get_running_loop().time()
        self.log.append(
            RequestRecord(
                marker,
                request_id,
                arrival.route,
                now,
                arrival.reused,
                arrival.in_flight,
                request.headers.get("traceparent", ""),
            )
        )

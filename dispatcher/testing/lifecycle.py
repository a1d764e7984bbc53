"""A fake server's life: listening, outages, death and rebirth, freezing and sleep."""

import asyncio

from dispatcher.testing.connections import Connections, Handler, Listener
from dispatcher.testing.faults import Die, Ending
from dispatcher.testing.flights import Flights
from dispatcher.testing.process import Process
from dispatcher.testing.settings import FakeServerSettings

_LANDING_S = 1.0  # how long the dying wait for their own last answers to be written
_SHUTDOWN_S = 0.05


class Lifecycle:
    """Owns the sockets, the process, and the outage that may be going on: one at a time."""

    process: Process
    connections: Connections
    listener: Listener

    def __init__(self, settings: FakeServerSettings) -> None:
        self.settings = settings
        self.flights = Flights(settings.marker, settings.log_max)
        self._outage: asyncio.Task[None] | None = None
        self._thaw: asyncio.TimerHandle | None = None

    async def start(self, handler: Handler, host: str, port: int) -> None:
        """Begin to listen. Raises OSError where the address cannot be had."""
        self.process = Process(self.settings, self.flights)
        self.connections = Connections(handler, self.settings)
        self.listener = Listener(self.connections, host, port)
        try:
            self.listener.open()
        except OSError:
            await self.listener.release()
            raise

    async def stop(self) -> None:
        """End at once: whatever is in flight is broken off."""
        await self._end_outage()
        await self.listener.release()
        self._end_process()
        await self.connections.shutdown(_SHUTDOWN_S)

    async def listen(self) -> None:
        """End any outage and open the listener again, on the same port."""
        await self._end_outage()
        self.listener.open()

    def stop_listening(self) -> None:
        """Close the listener and the idle connections. Requests in flight go on."""
        self.listener.close()
        self.connections.close_all(but=self.flights.connections())

    def begin_refusal(self, seconds: float) -> None:
        """Stop listening for so long, unless an outage is going on."""
        if self._outage is None or self._outage.done():
            self.stop_listening()
            self._outage = asyncio.create_task(self._refusal(seconds), name="fake-server-refusal")

    def begin_death(self, die: Die) -> None:
        """Let the engine die; the rest takes its course. The dead do not die again; death ends a refusal."""
        if self.process.death is not None:
            return
        self.process.death = die
        self.flights.doom(die)
        if self._outage is not None:
            self._outage.cancel()
        self._outage = asyncio.create_task(self._death(self.process, die), name="fake-server-death")

    async def landed(self) -> None:
        """Wait until the requests that were in flight at a death have got their endings, 1 s at most."""
        death = self.process.death
        if death is None or death.ending is not Ending.SILENCE:
            await self.flights.landed(_LANDING_S)

    async def restart(self) -> None:
        """Begin a new process: counters at zero, a new start time, the old one's connections broken."""
        await self._end_outage()
        await self._rise()

    def freeze(self, seconds: float | None) -> None:
        """Let the engine stand still, for `seconds` or until `thaw`."""
        self._cancel_thaw()
        self.process.update(frozen=True)
        if seconds is not None:
            self._thaw = asyncio.get_running_loop().call_later(seconds, self.thaw)

    def thaw(self) -> None:
        """Let the engine go on where it stood still."""
        self._cancel_thaw()
        self.process.update(frozen=False)

    async def _refusal(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.listener.open()

    async def _death(self, process: Process, die: Die) -> None:
        await self.landed()
        await process.last_words(die.linger_s)
        self.stop_listening()
        if die.seconds is not None:
            await asyncio.sleep(die.seconds)
            await self._rise()

    async def _rise(self) -> None:
        started_at = self.process.started_at
        self.listener.close()
        self._end_process()
        self.process = Process(self.settings, self.flights, started_after=started_at)
        self.listener.open()

    def _end_process(self) -> None:
        self._cancel_thaw()
        self.process.pace.close()
        self.flights.sever()
        self.connections.close_all()

    async def _end_outage(self) -> None:
        outage, self._outage = self._outage, None
        if outage is not None:
            outage.cancel()
            await asyncio.wait({outage})

    def _cancel_thaw(self) -> None:
        if self._thaw is not None:
            self._thaw.cancel()
            self._thaw = None

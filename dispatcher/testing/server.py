"""A fake vLLM server on real HTTP, whose faults are scripted while it runs."""

import asyncio
from collections.abc import Sequence
from typing import Self

from dispatcher.testing.control import clear
from dispatcher.testing.faults import ANY, Die, Fault, FaultScript, Injection, Match
from dispatcher.testing.flights import RequestRecord
from dispatcher.testing.handling import RequestHandler
from dispatcher.testing.lifecycle import Lifecycle
from dispatcher.testing.settings import FakeServerSettings


class FakeServer:
    """A server to rehearse a job with.

    Use it as `async with FakeServer() as server:` and talk to `server.url`; it listens only in there.
    Everything it does wrong was asked for: by `inject`, by the other methods here, or from another process
    over `/fake/` (see `control.py`). Port 0 lets the system choose one.
    """

    def __init__(
        self, settings: FakeServerSettings | None = None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.settings = settings or FakeServerSettings()
        self._address = (host, port)
        self._script = FaultScript()
        self._life = Lifecycle(self.settings)

    async def __aenter__(self) -> Self:
        """Start. Raises OSError where the address cannot be had."""
        handler = RequestHandler(self._life, self._script)
        await self._life.start(handler.handle, *self._address)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop at once: whatever is in flight is broken off."""
        await self._life.stop()

    # --- what tests look at ---

    @property
    def port(self) -> int:
        """The port, the same through all outages."""
        return self._life.listener.port

    @property
    def url(self) -> str:
        """The base URL, without a trailing slash and without /v1."""
        host = self._address[0]
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def requests(self) -> Sequence[RequestRecord]:
        """The posted requests so far, oldest first, at most the settings' `log_max`."""
        return list(self._life.flights.log)

    @property
    def in_flight(self) -> int:
        """Posted requests that have no answer yet."""
        return len(self._life.flights)

    @property
    def peak_in_flight(self) -> int:
        """The most that were ever in flight together."""
        return self._life.flights.peak

    @property
    def disconnects(self) -> int:
        """Posted requests whose client closed the connection before the answer."""
        return self._life.flights.disconnects

    @property
    def listening(self) -> bool:
        """Whether connections are accepted."""
        return self._life.listener.listening

    @property
    def started_at(self) -> float:
        """What `/metrics` shows as process_start_time_seconds."""
        return self._life.process.started_at

    # --- what can be done to it ---

    def inject(self, fault: Fault, match: Match = ANY, times: int | None = None) -> Injection:
        """Put a fault in force for the requests that match, at most `times` times (None: for ever)."""
        return self._script.inject(fault, match, times)

    def withdraw(self, injection: Injection) -> None:
        """Lift one fault."""
        self._script.withdraw(injection.id)

    def clear(self) -> None:
        """Lift all faults, thaw the engine and wake it."""
        clear(self._life, self._script)

    def freeze(self, seconds: float | None = None) -> None:
        """Let the engine stand still, for `seconds` or until `thaw`."""
        self._life.freeze(seconds)

    def thaw(self) -> None:
        """Let the engine go on where it stood still."""
        self._life.thaw()

    def sleep(self) -> None:
        """Put the engine to sleep: requests wait until it is woken."""
        self._life.process.update(sleeping=True)

    def wake_up(self) -> None:
        """Wake the engine."""
        self._life.process.update(sleeping=False)

    async def stop_listening(self) -> None:
        """Close the listener and the idle connections. Requests in flight go on."""
        self._life.stop_listening()

    async def listen(self) -> None:
        """Open the listener again, on the same port, and end any outage."""
        await self._life.listen()

    async def die(self, die: Die | None = None) -> None:
        """Let the engine die now. Returns when all in flight have got their endings."""
        self._life.begin_death(die or Die())
        await self._life.landed()

    async def restart(self) -> None:
        """Begin a new process: counters at zero, a new start time, every connection of the old one broken."""
        await self._life.restart()


async def serve_fake(settings: FakeServerSettings, host: str, port: int, stop: asyncio.Event) -> None:
    """Run one fake server until `stop` is set. Raises OSError where the address cannot be had."""
    async with FakeServer(settings, host, port):
        await stop.wait()

"""How one node reaches the servers: not all of them at all times."""

import asyncio

from dispatcher.config import KnownAnswer
from dispatcher.model import (
    Break,
    BreakKind,
    CanaryFault,
    CanaryReport,
    Ending,
    Health,
    ProbeReport,
    ServerSpec,
    Telemetry,
)
from dispatcher.ports import Prober
from dispatcher.testing.simulation.nodes.weather import Links
from dispatcher.testing.simulation.rows import Row
from dispatcher.testing.simulation.servers import Flight, SimulatedServer
from dispatcher.testing.simulation.world import CONNECT_TIMEOUT_S


class NodeConnections:
    """What one node has open to the servers."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._flights: dict[Flight, SimulatedServer] = {}

    async def exchange(self, server: SimulatedServer, row: Row) -> Ending:
        """One request and its ending, if the server is reached."""
        if server.plan.latency_s:
            await asyncio.sleep(server.plan.latency_s)
        if server.manners.unreachable or not self._links.reaches(server.id):
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            return Break(BreakKind.CONNECT_TIMED_OUT)
        taken = server.submit(row)
        if not isinstance(taken, Flight):
            return taken
        self._flights[taken] = server
        try:
            ending = await taken.ending
            await self._links.until_reached(server.id)  # then what TCP had to send again arrives
            return ending
        finally:
            self._flights.pop(taken, None)
            server.leave(taken)

    def hang_up(self) -> None:
        """The process is dead: its connections are closed."""
        flights, self._flights = self._flights, {}
        for flight, server in flights.items():
            server.leave(flight)


class NodeProber:
    """`ports.Prober` of one node."""

    def __init__(self, prober: Prober, links: Links) -> None:
        self._prober = prober
        self._links = links

    async def probe(self, server: ServerSpec) -> ProbeReport:
        """See Prober."""
        return await self._prober.probe(server) if await self._reaches(server) else _UNREACHABLE

    async def inspect(self, server: ServerSpec) -> ProbeReport:
        """See Prober."""
        return await self._prober.inspect(server) if await self._reaches(server) else _UNREACHABLE

    async def canary(
        self, server: ServerSpec, model: str | None, known: KnownAnswer | None = None
    ) -> CanaryReport:
        """See Prober."""
        if await self._reaches(server):
            return await self._prober.canary(server, model, known)
        return CanaryReport(CanaryFault.FAILED, "no connection within the connect timeout")

    async def scrape(self, server: ServerSpec, timeout_s: float | None = None) -> Telemetry | None:
        """See Prober."""
        return await self._prober.scrape(server, timeout_s) if await self._reaches(server) else None

    async def _reaches(self, server: ServerSpec) -> bool:
        if self._links.reaches(server.id):
            return True
        await asyncio.sleep(CONNECT_TIMEOUT_S)
        return False


_UNREACHABLE = ProbeReport(Health.UNREACHABLE, "no connection within the connect timeout")

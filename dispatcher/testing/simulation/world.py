"""Simulated servers as a dispatcher meets them: `ports.Transport` and `ports.Prober` without a network."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from dispatcher.config import KnownAnswer
from dispatcher.model import (
    Answer,
    Break,
    BreakKind,
    CanaryFault,
    CanaryReport,
    Ending,
    Health,
    ProbeReport,
    Request,
    ServerId,
    ServerSpec,
    Telemetry,
)
from dispatcher.testing.simulation.rows import Row, Rows
from dispatcher.testing.simulation.servers import VERSION, Flight, SimulatedServer
from dispatcher.vllm.canary import CANARIES, report_on

CONNECT_TIMEOUT_S = 3.0


class Witness(Protocol):
    """Who is told of everything that one dispatcher does to the servers."""

    def sent(self, server: SimulatedServer, row: Row) -> None:
        """A request goes out."""

    def ended(self, server: SimulatedServer, row: Row, ending: Ending | None) -> None:
        """It ended; None where the dispatcher closed it."""

    def canary_passed(self, server: ServerId) -> None:
        """A canary has come back well."""


async def exchange(server: SimulatedServer, row: Row) -> Ending:
    """One request and its ending, over a connection that is made, travels and may be refused."""
    if server.plan.latency_s:
        await asyncio.sleep(server.plan.latency_s)
    if server.manners.unreachable:
        await asyncio.sleep(CONNECT_TIMEOUT_S)
        return Break(BreakKind.CONNECT_TIMED_OUT)
    taken = server.submit(row)
    if not isinstance(taken, Flight):
        return taken
    try:
        return await taken.ending
    finally:
        server.leave(taken)


Exchange = Callable[[SimulatedServer, Row], Awaitable[Ending]]


async def exchange_within(
    server: SimulatedServer, row: Row, timeout_s: float | None, exchange: Exchange = exchange
) -> Ending:
    """The same with a deadline, where there is one."""
    if timeout_s is None:
        return await exchange(server, row)
    try:
        async with asyncio.timeout(timeout_s):
            return await exchange(server, row)
    except TimeoutError:
        return Break(BreakKind.TIMED_OUT)


class SimulatedTransport:
    """`ports.Transport` of one dispatcher over simulated servers, which it reaches by this `exchange`."""

    def __init__(
        self,
        servers: Mapping[ServerId, SimulatedServer],
        rows: Rows,
        witness: Witness,
        exchange: Exchange = exchange,
    ) -> None:
        self._servers = servers
        self._rows = rows
        self._witness = witness
        self._exchange = exchange

    async def send(
        self,
        server: ServerSpec,
        request: Request,
        request_id: str,  # noqa: ARG002  # Transport's signature: the simulated servers know rows by index
        timeout_s: float | None,
    ) -> Ending:
        """See Transport."""
        simulated, row = self._servers[server.id], self._rows.row(request.index)
        ending: Ending | None = None
        self._witness.sent(simulated, row)
        try:
            ending = await exchange_within(simulated, row, timeout_s, self._exchange)
        finally:
            self._witness.ended(simulated, row, ending)
        return ending


class SimulatedProber:
    """`ports.Prober` of one dispatcher over simulated servers."""

    def __init__(
        self, servers: Mapping[ServerId, SimulatedServer], witness: Witness, probe_timeout_s: float
    ) -> None:
        self._servers = servers
        self._witness = witness
        self._probe_timeout_s = probe_timeout_s

    async def probe(self, server: ServerSpec) -> ProbeReport:
        """See Prober."""
        return ProbeReport(*await self._health(self._servers[server.id]))

    async def inspect(self, server: ServerSpec) -> ProbeReport:
        """See Prober."""
        simulated = self._servers[server.id]
        (health, detail), telemetry = await asyncio.gather(self._health(simulated), self.scrape(server))
        if simulated.manners.unreachable or not simulated.listening:
            return ProbeReport(health, detail)
        return ProbeReport(
            health,
            detail,
            models=dict.fromkeys(simulated.models, simulated.models[0]),
            sleeping=simulated.manners.asleep,
            version=VERSION,
            started_at=telemetry.started_at if telemetry else None,
            telemetry=telemetry,
        )

    async def canary(
        self,
        server: ServerSpec,
        model: str | None,
        known: KnownAnswer | None = None,  # noqa: ARG002  # Prober's signature: no simulated server lies
    ) -> CanaryReport:
        """See Prober."""
        simulated, request = self._servers[server.id], CANARIES[0].request(model)
        row = Row(-1, 1, 1, simulated.models[0] if model is None else model)
        ending = await exchange_within(simulated, row, self._probe_timeout_s)
        report = report_on(_as_completion(ending, row), request) or CanaryReport()
        if report.fault in (None, CanaryFault.BUSY):
            self._witness.canary_passed(server.id)
        return report

    async def scrape(self, server: ServerSpec, timeout_s: float | None = None) -> Telemetry | None:
        """See Prober."""
        simulated = self._servers[server.id]
        if simulated.manners.unreachable:
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            return None
        delay_s, timeout_s = simulated.manners.metrics_s, timeout_s or self._probe_timeout_s
        if delay_s:
            await asyncio.sleep(min(delay_s, timeout_s))
        readable = simulated.listening and simulated.plan.metrics and delay_s < timeout_s
        return simulated.telemetry() if readable else None

    async def _health(self, server: SimulatedServer) -> tuple[Health, str]:
        if server.manners.unreachable:
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            return Health.UNREACHABLE, "no connection within the connect timeout"
        if not server.listening:
            return Health.REFUSED, "nobody listens"
        delay_s, life = server.manners.health_s, server.started_at
        await asyncio.sleep(min(delay_s, self._probe_timeout_s))
        if delay_s >= self._probe_timeout_s:
            return Health.SLOW, "no answer in time"
        return (Health.UP, "") if server.is_up(life) else (Health.UNREACHABLE, "the connection was reset")


def _as_completion(ending: Ending, row: Row) -> Ending:
    """The canary's route is that of completions, while the servers' answers have the rows' route."""
    if isinstance(ending, Answer) and ending.status == 200:  # noqa: PLR2004  # HTTP
        chat = b'"message":{"role":"assistant","content":"answer %d"}' % row.index
        return Answer(200, ending.body.replace(chat, b'"text":"1"'), ending.content_type)
    return ending

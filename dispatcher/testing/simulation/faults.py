"""Faults set to work: what each does to its server when it begins and when it ends."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from dispatcher.testing.simulation.ledger import Ledger
from dispatcher.testing.simulation.replies import OTHER_MODEL
from dispatcher.testing.simulation.scenario import SPOILING, Fault, FaultKind
from dispatcher.testing.simulation.servers import SimulatedServer

SLOW_HEALTH_S = 40.0
"""What `/health` took on a busy healthy server, at most (public reports; shared/VLLM.md)."""
RESTART_S = 1.0


def schedule(
    faults: Sequence[Fault],
    servers: Sequence[SimulatedServer],
    ledger: Ledger,
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Let every fault happen at its time."""
    for fault in faults:
        server = servers[fault.server]
        loop.call_at(fault.at, _begin, fault, server, ledger)
        loop.call_at(fault.at + fault.seconds, _end, fault, server, ledger)


def _begin(fault: Fault, server: SimulatedServer, ledger: Ledger) -> None:
    ledger.note("fault", fault.kind, server.id)
    _BEGINNINGS.get(fault.kind, _spoil)(fault, server)


def _end(fault: Fault, server: SimulatedServer, ledger: Ledger) -> None:
    ledger.note("fault-over", fault.kind, server.id)
    _ENDS.get(fault.kind, _stop_spoiling)(fault, server)


def _spoil(fault: Fault, server: SimulatedServer) -> None:
    assert fault.kind in SPOILING, f"{fault.kind} has no beginning"
    server.manners.spoiling[fault.kind] = fault.share


def _stop_spoiling(fault: Fault, server: SimulatedServer) -> None:
    server.manners.spoiling.pop(fault.kind, None)


def _freeze(_fault: Fault, server: SimulatedServer) -> None:
    server.stand_still(frozen=True)


def _thaw(_fault: Fault, server: SimulatedServer) -> None:
    server.manners.asleep = False
    server.stand_still(frozen=False)


def _put_to_sleep(fault: Fault, server: SimulatedServer) -> None:
    server.manners.asleep = True
    _freeze(fault, server)


def _reset(fault: Fault, server: SimulatedServer) -> None:
    server.manners.resetting = fault.share
    server.reset_open()


def _nothing(_fault: Fault, _server: SimulatedServer) -> None:
    """The server comes back by itself."""


_Effect = Callable[[Fault, SimulatedServer], None]
_BEGINNINGS: Final[dict[FaultKind, _Effect]] = {
    FaultKind.KILLED: lambda fault, server: server.kill(fault.seconds),
    FaultKind.TERMINATED: lambda fault, server: server.terminate(fault.seconds),
    FaultKind.RESTARTED: lambda fault, server: server.restart(fault.seconds),
    FaultKind.SWAPPED: lambda _fault, server: server.restart(RESTART_S, (OTHER_MODEL,)),
    FaultKind.FROZEN: _freeze,
    FaultKind.ASLEEP: _put_to_sleep,
    FaultKind.SLOW_HEALTH: lambda fault, server: server.manners.slow_down(SLOW_HEALTH_S * fault.share),
    FaultKind.UNREACHABLE: lambda _fault, server: server.lose_packets(lost=True),
    FaultKind.RESETTING: _reset,
    FaultKind.FULL: lambda _fault, server: server.manners.fill(full=True),
}
_ENDS: Final[dict[FaultKind, _Effect]] = {
    FaultKind.KILLED: _nothing,
    FaultKind.TERMINATED: _nothing,
    FaultKind.RESTARTED: _nothing,
    FaultKind.SWAPPED: lambda _fault, server: server.restart(RESTART_S),
    FaultKind.FROZEN: _thaw,
    FaultKind.ASLEEP: _thaw,
    FaultKind.SLOW_HEALTH: lambda _fault, server: server.manners.slow_down(server.plan.health_s),
    FaultKind.UNREACHABLE: lambda _fault, server: server.lose_packets(lost=False),
    FaultKind.RESETTING: lambda _fault, server: server.manners.reset_no_more(),
    FaultKind.FULL: lambda _fault, server: server.manners.fill(full=False),
}

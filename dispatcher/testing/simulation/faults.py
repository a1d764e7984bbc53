"""Faults set to work: what each does to its server when it begins and when it ends."""

import asyncio
from collections.abc import Sequence

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
    manners = server.manners
    match fault.kind:
        case FaultKind.KILLED:
            server.kill(fault.seconds)
        case FaultKind.TERMINATED:
            server.terminate(fault.seconds)
        case FaultKind.RESTARTED:
            server.restart(fault.seconds)
        case FaultKind.SWAPPED:
            server.restart(RESTART_S, (OTHER_MODEL,))
        case FaultKind.FROZEN:
            server.stand_still(frozen=True)
        case FaultKind.ASLEEP:
            manners.asleep = True
            server.stand_still(frozen=True)
        case FaultKind.SLOW_HEALTH:
            manners.health_s = SLOW_HEALTH_S * fault.share
        case FaultKind.UNREACHABLE:
            server.lose_packets(lost=True)
        case FaultKind.RESETTING:
            manners.resetting = fault.share
            server.reset_open()
        case FaultKind.FULL:
            manners.full = True
        case _:
            assert fault.kind in SPOILING, f"{fault.kind} has no beginning"
            manners.spoiling[fault.kind] = fault.share


def _end(fault: Fault, server: SimulatedServer, ledger: Ledger) -> None:
    ledger.note("fault-over", fault.kind, server.id)
    manners = server.manners
    match fault.kind:
        case FaultKind.KILLED | FaultKind.TERMINATED | FaultKind.RESTARTED:
            pass  # the server comes back by itself
        case FaultKind.SWAPPED:
            server.restart(RESTART_S)
        case FaultKind.FROZEN:
            server.stand_still(frozen=False)
        case FaultKind.ASLEEP:
            manners.asleep = False
            server.stand_still(frozen=False)
        case FaultKind.SLOW_HEALTH:
            manners.health_s = server.plan.health_s
        case FaultKind.UNREACHABLE:
            server.lose_packets(lost=False)
        case FaultKind.RESETTING:
            manners.resetting = 0.0
        case FaultKind.FULL:
            manners.full = False
        case _:
            manners.spoiling.pop(fault.kind, None)

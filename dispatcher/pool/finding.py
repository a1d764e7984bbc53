"""What a full inspection and a canary say of a server out of rotation. Pure."""

from dispatcher.config import PoolSettings
from dispatcher.model import CanaryFault, CanaryReport, Health, ProbeReport
from dispatcher.pool.server import Server
from dispatcher.pool.states import Event, State


def finding_of(
    server: Server,
    report: ProbeReport,
    canary: CanaryReport,
    settings: PoolSettings,
    *,
    stalled: bool,
    figures: bool = True,
) -> tuple[Event, str] | None:
    """The event that the server meets, and why; None where nothing was learned of it.

    `stalled`: it has held requests without progress for `pool.stall_s`. `figures`: its own could be read.
    """
    if (end := _end_of(report, canary)) is not None:
        return Event.DIED, end
    if server.state is State.SUSPECT and server.restarted(report.started_at):
        return Event.RESTARTED, "the process was restarted"
    if report.sleeping:
        return Event.SLEPT, "asleep"
    if not settings.canary:
        return _finding_by_health(server, report, stalled=stalled)
    finding = _finding_by_canary(server, canary, settings)
    unseen = canary.fault is CanaryFault.SLOW and not (stalled or figures) and _is_busy(server)
    if finding is not None and finding[0] is Event.FAILED and unseen:
        return None  # it has its time to stall, as any server that is too busy to be looked at
    return finding


def _end_of(report: ProbeReport, canary: CanaryReport) -> str | None:
    """How it has ended, if it has: between the two, perhaps."""
    if report.health in (Health.DOWN, Health.REFUSED):
        return report.detail
    return f"canary: {canary.detail}" if canary.fault is CanaryFault.DEAD else None


def _finding_by_canary(
    server: Server, canary: CanaryReport, settings: PoolSettings
) -> tuple[Event, str] | None:
    match canary.fault:
        case CanaryFault.UNASKED:
            return None
        case CanaryFault.MISMATCHED | CanaryFault.WRONG:
            return Event.MISMATCHED, canary.detail
        case CanaryFault.SLOW if _is_at_work(server):
            return Event.VERIFIED, "verified"
        case CanaryFault.BUSY if _may_be_busy(server, settings):
            return Event.VERIFIED, "verified"
        case None:
            return Event.VERIFIED, "verified"
        case _:
            return Event.FAILED, f"canary: {canary.detail}"


def _is_at_work(server: Server) -> bool:
    """A suspect with our requests in its batch may be too busy for a canary; it is not to be evicted."""
    return _is_busy(server) and server.progress_at > server.machine.since


def _is_busy(server: Server) -> bool:
    return server.state is State.SUSPECT and server.in_flight > 0


def _may_be_busy(server: Server, settings: PoolSettings) -> bool:
    """Busy is alive, which is enough unless an answer is to be heard; a suspect's was, at its admission."""
    return server.state is State.SUSPECT or settings.known_answer is None


def _finding_by_health(server: Server, report: ProbeReport, *, stalled: bool) -> tuple[Event, str] | None:
    """Health must do where the user wants no canary: slow passes in a suspect, and a stall never."""
    if report.health is Health.UNASKED:
        return None
    passing = (Health.UP, Health.ABSENT, *((Health.SLOW,) if server.state is State.SUSPECT else ()))
    if report.health in passing and not stalled:
        return Event.VERIFIED, "verified"
    return Event.FAILED, report.detail or "no progress, and no canary to ask"

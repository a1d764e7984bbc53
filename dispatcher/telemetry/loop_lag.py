"""How late the event loop's timers ring: what a blocked loop looks like from inside."""

from collections.abc import Callable

import structlog

from dispatcher.ports import Clock
from dispatcher.telemetry.absences import BEAT_S, Absences


async def measure_loop_lag(clock: Clock, lagged: Callable[[float], None], absences: Absences) -> None:
    """Beat, and report each beat's lag in seconds, until cancelled.

    A timer that rings late was held up by something that did not await, or by the system: every other task
    was, too.
    """
    log = structlog.get_logger("dispatcher.loop")
    absences.beat()
    while True:
        due = clock.now() + BEAT_S
        await clock.sleep(BEAT_S)
        lagged(max(0.0, clock.now() - due))
        if away_s := absences.beat():
            log.warning("stood_still", seconds=round(away_s, 1))

"""How late the event loop's timers ring: what a blocked loop looks like from inside."""

from collections.abc import Callable

from dispatcher.ports import Clock


async def measure_loop_lag(clock: Clock, lagged: Callable[[float], None], interval_s: float = 0.5) -> None:
    """Report the lag in seconds every `interval_s`, until cancelled.

    A timer that rings late was held up by something that did not await: every other task was, too.
    """
    while True:
        due = clock.now() + interval_s
        await clock.sleep(interval_s)
        lagged(max(0.0, clock.now() - due))

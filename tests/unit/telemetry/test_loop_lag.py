"""The lag of the event loop, in virtual time."""

import pytest
from structlog.testing import capture_logs

from dispatcher.telemetry.absences import Absences
from dispatcher.telemetry.loop_lag import measure_loop_lag


class TimeIsUpError(Exception):
    """The test's time has been used up."""


class LateClock:
    """A clock whose sleeps last longer than asked, by what the test says."""

    def __init__(self, *late_s):
        self._late_s = list(late_s)
        self._now = 1000.0

    def now(self):
        return self._now

    async def sleep(self, seconds):
        if not self._late_s:
            raise TimeIsUpError
        self._now += seconds + self._late_s.pop(0)


async def lags_of(clock, absences=None):
    lags = []
    with pytest.raises(TimeIsUpError):
        await measure_loop_lag(clock, lags.append, absences or Absences(clock.now))
    return lags


async def test_each_timer_s_lateness_is_reported_and_none_is_negative():
    assert await lags_of(LateClock(0.0, 0.25, -0.125, 2.0)) == [0.0, 0.25, 0.0, 2.0]


async def test_a_loop_that_stood_still_says_so_once_and_its_absence_is_known():
    clock = LateClock(0.0, 4.75, 0.0, 0.25)
    absences = Absences(clock.now)
    with capture_logs() as logs:
        await lags_of(clock, absences)
    assert logs == [{"event": "stood_still", "seconds": 5.0, "log_level": "warning"}]
    assert absences.seconds_since(0.0) == 5.0

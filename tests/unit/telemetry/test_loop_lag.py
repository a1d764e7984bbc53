"""The lag of the event loop, in virtual time."""

import pytest

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


async def test_each_timer_s_lateness_is_reported_and_none_is_negative():
    lags = []
    with pytest.raises(TimeIsUpError):
        await measure_loop_lag(LateClock(0.0, 0.25, -0.125, 2.0), lags.append, interval_s=0.5)
    assert lags == [0.0, 0.25, 0.0, 2.0]

"""When this process stood still, by a clock that the test moves."""

import pytest

from dispatcher.telemetry.absences import BACK_S, BEAT_S, KEPT_MAX, LATE_S, Absences


class Loop:
    """Beats as the event loop does, and stops where the test says so."""

    def __init__(self):
        self.now = 1000.0
        self.absences = Absences(lambda: self.now)
        self.absences.beat()

    def run(self, beats=4):
        return [self._beat(BEAT_S) for _ in range(beats)]

    def stop(self, seconds):
        """Stands still for so long, and does not know yet."""
        self.now += seconds

    def _beat(self, seconds):
        self.now += seconds
        return self.absences.beat()


@pytest.fixture
def loop():
    return Loop()


def test_without_beats_nobody_is_ever_away():
    now = 0.0
    absences = Absences(lambda: now)
    now = 1e6
    assert absences.seconds_since(0.0) == 0
    assert not absences.just_over()


def test_a_loop_that_beats_in_time_is_never_away(loop):
    began = loop.now
    assert loop.run(100) == [0.0] * 100
    assert loop.absences.seconds_since(began) == 0
    assert not loop.absences.just_over()


def test_a_beat_that_is_a_little_late_is_a_busy_loop(loop):
    began = loop.now
    loop.stop(BEAT_S + LATE_S - 0.01)
    assert loop.absences.beat() == 0
    assert loop.absences.seconds_since(began) == 0


def test_an_absence_is_known_before_the_beat_that_notices_it(loop):
    loop.run()
    began = loop.now
    loop.stop(5.0)
    assert loop.absences.just_over()
    assert loop.absences.seconds_since(began) == 5.0
    assert loop.absences.beat() == 5.0
    assert loop.absences.just_over()
    assert loop.absences.seconds_since(began) == 5.0


def test_what_runs_out_shortly_after_an_absence_may_be_its_doing_and_later_not(loop):
    loop.stop(5.0)
    loop.absences.beat()
    loop.stop(BACK_S - 0.01)
    assert loop.absences.just_over()
    loop.stop(0.01)
    assert not loop.absences.just_over()


def test_only_the_part_of_an_absence_after_that_time_counts(loop):
    loop.stop(4.0)
    loop.absences.beat()
    assert loop.absences.seconds_since(loop.now - 1.0) == 1.0
    assert loop.absences.seconds_since(loop.now) == 0
    assert loop.absences.seconds_since(loop.now + 1.0) == 0


def test_absences_add_up(loop):
    began = loop.now
    for seconds in (2.0, 3.0):
        loop.stop(seconds)
        loop.absences.beat()
        loop.run()
    loop.stop(1.0)
    assert loop.absences.seconds_since(began) == 6.0


def test_the_oldest_absences_are_forgotten(loop):
    began = loop.now
    for _ in range(KEPT_MAX + 10):
        loop.stop(1.0)
        loop.absences.beat()
    assert loop.absences.seconds_since(began) == KEPT_MAX

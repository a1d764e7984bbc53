"""Limits of servers without telemetry, led by a made-up server's answers a second."""

from random import Random
from statistics import mean, median

import pytest

from dispatcher.pool.climb import Climb

MOST = 2048


class MadeUpServer:
    """Runs up to `slots` requests at once, each step the slower the more there are; the rest waits inside."""

    def __init__(self, slots, *, alone_s=0.0125, each_s=0.00015, tokens=200, seed=1):
        self.slots, self._alone_s, self._each_s, self._tokens = slots, alone_s, each_s, tokens
        self._random = Random(seed)
        self.now = 0.0

    def pace(self, permits):
        """Answers a second."""
        running = min(permits, self.slots)
        return running / (self._tokens * (self._alone_s + self._each_s * running))

    def keep_busy(self, climb, seconds, share=1.0):
        """Returns the answers a second, as a share of the best."""
        began, answers, until = self.now, 0, self.now + seconds
        while self.now < until:
            permits = int(climb.value)
            self.now += self._random.expovariate(self.pace(permits))
            climb.answered(int(permits * share) - 1, self.now)
            answers += 1
        return answers / (self.now - began) / max(self.pace(permits) for permits in range(1, MOST))


@pytest.mark.parametrize("slots", [64, 100, 128, 256, 700, 1024])
@pytest.mark.parametrize("seed", range(5))
def test_an_hour_from_a_cold_start_comes_within_a_tenth_of_the_best_pace(slots, seed):
    server, climb = MadeUpServer(slots, seed=seed), Climb(256.0, MOST)
    assert server.keep_busy(climb, 3600) >= 0.9


@pytest.mark.parametrize("slots", [8, 32])
def test_what_only_waits_inside_a_small_server_is_let_go(slots):
    server, climb = MadeUpServer(slots), Climb(256.0, MOST)
    shares, held = zip(*((server.keep_busy(climb, 1800), climb.value) for _ in range(24)), strict=True)
    assert mean(shares) >= 0.95
    assert median(held) <= 2 * slots


def test_it_stays_within_its_bounds():
    server, climb = MadeUpServer(10_000, each_s=0.0), Climb(256.0, MOST)
    server.keep_busy(climb, 1800)
    assert climb.value == MOST


def test_a_server_that_is_not_kept_full_teaches_nothing():
    server, climb = MadeUpServer(64), Climb(256.0, MOST)
    server.keep_busy(climb, 3600, share=0.5)
    assert climb.value == 256.0


def test_a_server_that_becomes_faster_is_given_more():
    server, climb = MadeUpServer(64), Climb(256.0, MOST)
    server.keep_busy(climb, 3600)
    assert climb.value < 100
    server.slots = 512
    server.keep_busy(climb, 1800)
    assert server.keep_busy(climb, 3600) >= 0.9


def test_time_away_is_not_counted_against_it():
    server, climb = MadeUpServer(1000), Climb(256.0, MOST)
    server.keep_busy(climb, 60)
    before = climb.value
    server.now += 86_400
    climb.begin()
    server.keep_busy(climb, 60)
    assert climb.value >= before

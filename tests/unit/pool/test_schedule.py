from random import Random

import pytest

from dispatcher.config import PoolSettings
from dispatcher.pool.schedule import backoff_s, check_delay_s
from dispatcher.pool.states import State

SETTINGS = PoolSettings(probe_interval_s=5, readmit_backoff_min_s=2, readmit_backoff_max_s=60)
OUT = [State.EVICTED, State.PAUSED, State.MISMATCHED]


def draws(make, count=2000):
    random = Random(3)
    return [make(random) for _ in range(count)]


@pytest.mark.parametrize(
    ("setbacks", "bound"), [(0, 2), (1, 2), (2, 4), (3, 8), (5, 32), (6, 60), (7, 60), (10**6, 60)]
)
def test_the_back_off_fills_the_range_up_to_a_bound_that_doubles(setbacks, bound):
    drawn = draws(lambda random: backoff_s(setbacks, SETTINGS, random))
    assert min(drawn) >= 2
    assert max(drawn) <= bound
    assert max(drawn) - min(drawn) >= 0.95 * (bound - 2)


@pytest.mark.parametrize("state", OUT)
def test_a_server_out_of_service_is_looked_at_after_a_back_off(state):
    assert all(2 <= delay <= 8 for delay in draws(lambda random: check_delay_s(state, 3, SETTINGS, random)))


@pytest.mark.parametrize("state", [State.ACTIVE, State.JOINING, State.DRAINING])
def test_a_server_that_is_waited_for_is_looked_at_every_interval_or_a_little_before(state):
    drawn = draws(lambda random: check_delay_s(state, 9, SETTINGS, random))
    assert 4 <= min(drawn) < 4.1
    assert 4.9 < max(drawn) <= 5


@pytest.mark.parametrize("setbacks", [0, 1, 9])
def test_verification_does_not_wait(setbacks):
    assert check_delay_s(State.VERIFYING, setbacks, SETTINGS, Random(1)) == 0


def test_a_suspects_canary_is_sent_at_once_unless_suspicion_is_a_habit():
    assert check_delay_s(State.SUSPECT, 1, SETTINGS, Random(1)) == 0
    assert check_delay_s(State.SUSPECT, 2, SETTINGS, Random(1)) == 2
    assert all(
        2 <= delay <= 60 for delay in draws(lambda random: check_delay_s(State.SUSPECT, 99, SETTINGS, random))
    )

"""When a server is looked at next."""

import math
from random import Random
from typing import assert_never

from dispatcher.config import PoolSettings
from dispatcher.pool.states import State

SPREAD = 0.8
"""The least share of the usual time between two looks."""
WELL_AFTER_S = 300.0
"""A server this long in rotation is well again: its setbacks are forgotten."""


def check_delay_s(state: State, setbacks: int, settings: PoolSettings, random: Random) -> float:
    """Seconds from now to the next look at a server in this state with so many setbacks behind it."""
    match state:
        case State.ACTIVE | State.JOINING | State.DRAINING | State.GONE:
            # Servers that joined together are not to be asked together for ever.
            return settings.probe_interval_s * random.uniform(SPREAD, 1.0)
        case State.VERIFYING:
            return 0.0
        case State.SUSPECT:  # its requests wait for the decision: at once, unless this is becoming a habit
            return 0.0 if setbacks <= 1 else backoff_s(setbacks - 1, settings, random)
        case State.EVICTED | State.PAUSED | State.MISMATCHED:
            return backoff_s(setbacks, settings, random)
        case _ as never:
            assert_never(never)


def backoff_s(setbacks: int, settings: PoolSettings, random: Random) -> float:
    """Full jitter between the smallest back-off and an exponentially growing bound.

    Full jitter spreads the probes of many servers that died together (AWS Architecture Blog, "Exponential
    Backoff And Jitter", 2015).
    """
    smallest, largest = settings.readmit_backoff_min_s, settings.readmit_backoff_max_s
    bound = min(largest, smallest * math.exp2(min(max(0, setbacks - 1), 32)))
    return random.uniform(smallest, max(smallest, bound))

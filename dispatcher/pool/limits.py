"""How many requests a server may hold at once: its permits."""

import math
import zlib
from dataclasses import dataclass
from typing import Protocol

from dispatcher.model import Telemetry
from dispatcher.pool.climb import Climb

LIMIT_START = 256
"""First limit of a server whose KV cache is not known: vLLM's own default of `--max-num-seqs`."""
LIMIT_MAX = 2048
RAMP_START = 8
RAMP_DOUBLING_S = 1.0
"""An admitted server starts with 8 permits, doubled every second: one that fails at once is found out
with few rows spent, and one that works stands at 256 after five seconds."""
RAMP_S = RAMP_DOUBLING_S * math.log2(LIMIT_MAX / RAMP_START)
"""Then the ramp is past every limit that is learned. Each choice of a server asks for that of several."""
GROWTH = 1.25
GROWTH_EMPTY = 2.0
KV_EMPTY_SHARE = 0.4
"""While no more of the KV cache is in use, twice as many requests fit as well: what a cache is said to hold
counts requests of the greatest length, and most are far shorter."""
BACKLOG_CUT = 0.9
OVERLOAD_CUT = 0.7
WAITING_SHARE = 0.1
"""A waiting queue up to this share of the limit keeps the engine fed; a longer one is only latency."""
SATURATED_SHARE = 0.9
ALONE_SHARE = 0.9
"""Whoever holds less than this share of a server's requests is not the only one that sends there."""
SHARED_GROWTH = 0.03
"""What is added at each reading where others send as well, as a share of all requests there: to a small limit
as much as to a large one, which is what makes them equal in the end."""
SHARED_GROWTH_IDLE = 0.06
"""The same where nothing waited at two readings in a row: once may be chance."""
SHARED_PRICE = 2.0
"""This, times the share of all requests that waits, is the part that a limit loses: a large one loses more.
Limits of N nodes rest where they are equal and N x 1.5 % of all requests wait."""
SHARED_CUT = 0.7
"""What is left at least."""
SHARED_WAITING_SHARE = 0.2
"""Where more than this share of all requests waits, nothing is added."""
SHARED_EXCESS = 1.05
"""While more than this times the limit is in flight, an earlier cut is still at work."""
UNMEASURED_MAX = 6
"""Readings that a server may leave out before it counts as one without: half a minute by default."""


class Limit(Protocol):
    """A server's limit under the evidence about its load."""

    def permits(self, now: float) -> int:
        """How many requests it may hold now; at least 1."""

    def admitted(self, now: float) -> None:
        """The server entered, or came back into, rotation: ramp up."""

    def completed(self, in_flight: int, now: float) -> None:
        """A request ended well, while so many others were open."""

    def overloaded(self, in_flight: int, sent_at: float, now: float) -> None:
        """A request sent at `sent_at` was refused for load while `in_flight` others stayed."""

    def measured(self, telemetry: Telemetry, in_flight: int) -> None:
        """The server told its load. Absent figures change nothing."""

    def unmeasured(self) -> None:
        """The server did not tell its load."""


@dataclass(frozen=True, slots=True)
class Portion:
    """Which one this process is of several that feed the same servers, and that divide their permits."""

    number: int = 0
    """From 0."""
    of: int = 1

    def part(self, limit: int, server: str) -> int:
        """This process's part of a fixed limit at a server; 1 at least, or it could not send there at all.

        The parts add up to the limit, unless there are more processes than permits. What cannot be divided
        goes to other processes at other servers.
        """
        turn = (self.number + zlib.crc32(server.encode())) % self.of
        return max(1, limit // self.of + (turn < limit % self.of))


ALL = Portion()


def ramp(admitted_at: float, now: float) -> float:
    """The most permits a server admitted at `admitted_at` has now."""
    doublings = (now - admitted_at) / RAMP_DOUBLING_S
    return RAMP_START * math.exp2(min(doublings, 32.0))


class FixedLimit:
    """The user's number. It wins over every evidence; a fresh server still ramps up to it."""

    __slots__ = ("_admitted_at", "_value")

    def __init__(self, value: int) -> None:
        self._value = value
        self._admitted_at = 0.0

    def permits(self, now: float) -> int:
        """The user's number, or less during the ramp."""
        return int(min(self._value, ramp(self._admitted_at, now)))

    def admitted(self, now: float) -> None:
        """Start the ramp."""
        self._admitted_at = now

    def completed(self, in_flight: int, now: float) -> None:
        """A fixed limit does not grow."""

    def overloaded(self, in_flight: int, sent_at: float, now: float) -> None:
        """A fixed limit does not shrink."""

    def measured(self, telemetry: Telemetry, in_flight: int) -> None:
        """A fixed limit does not listen."""

    def unmeasured(self) -> None:
        """A fixed limit does not listen."""


class LearnedLimit:
    """Led by the server's own telemetry. Without it, by the answers that the server gives a second.

    Refusals for load cut it. Without telemetry, successes win back what a refusal took, and only then is
    anything else tried.

    Of several processes at one server, `sharers` with this one, each learns a limit of its own, by the same
    signs: the server's waiting queue and its preemptions are of them all. Whether there are others it sees
    from what the server holds beyond its own, and moves in steps then that make all limits equal.
    """

    __slots__ = (
        "_admitted_at",
        "_climb",
        "_cut_at",
        "_idle",
        "_most",
        "_preemptions",
        "_refused",
        "_sharers",
        "_start",
        "_telemetry",
        "_unmeasured",
        "_value",
    )

    def __init__(self, sharers: int = 1) -> None:
        self._sharers = sharers
        self._start = max(1.0, LIMIT_START / sharers)
        self._most = max(1.0, LIMIT_MAX / sharers)
        self._value = self._start
        self._admitted_at = 0.0
        self._cut_at = float("-inf")
        self._preemptions: float | None = None
        self._telemetry = False
        self._idle = False
        """Whether nothing waited there at the latest reading."""
        self._unmeasured = 0
        """Readings left out since the latest one."""
        self._refused = False
        """Whether it has refused for load since it was admitted: then it says by itself what fits."""
        self._climb: Climb | None = Climb(self._value, self._most)
        """None while a refusal's cut is won back."""

    def permits(self, now: float) -> int:
        """The learned number, or less during the ramp."""
        if now - self._admitted_at >= RAMP_S:
            return int(self._value)
        return max(1, int(min(self._value, ramp(self._admitted_at, now))))

    def admitted(self, now: float) -> None:
        """Start the ramp."""
        self._admitted_at = now
        self._refused = False
        if self._climb is not None:
            self._climb.begin()

    def completed(self, in_flight: int, now: float) -> None:
        """Without telemetry, climb; after a refusal, one more permit for each round of successes."""
        if self._telemetry:
            return
        if self._climb is not None:
            self._climb.answered(in_flight, now)
            self._value = self._climb.value
            return
        self._value = min(self._start, self._value + 1.0 / self._value)
        if self._value == self._start:
            self._climb = Climb(self._value, self._most)

    def overloaded(self, in_flight: int, sent_at: float, now: float) -> None:
        """Cut once for all requests of one burst, and never keep more than the server did not refuse."""
        if sent_at >= self._cut_at:
            self._value *= OVERLOAD_CUT
            self._cut_at = now
        self._value = max(1.0, min(self._value, float(in_flight)))
        self._climb = None
        self._refused = True

    def measured(self, telemetry: Telemetry, in_flight: int) -> None:
        """Grow while nothing waits there, hold at a short queue, shrink at a long one or on preemptions."""
        if telemetry.waiting is None:
            self.unmeasured()
            return
        self._first_telemetry(telemetry)
        idle_before, self._idle = self._idle, telemetry.waiting == 0
        load = 0.0 if telemetry.running is None else telemetry.running + telemetry.waiting
        together = self._value * self._sharers
        if self._preempted(telemetry):
            self._value = max(1.0, self._value * BACKLOG_CUT)
        elif in_flight < load * ALONE_SHARE:
            growth = SHARED_GROWTH_IDLE if idle_before and self._idle else SHARED_GROWTH
            self._share(in_flight, telemetry.waiting, load, growth)
        elif telemetry.waiting > max(1.0, together * WAITING_SHARE):
            self._value = max(1.0, self._value * BACKLOG_CUT)
        elif self._idle and self._is_used(in_flight):
            self._grow(telemetry)

    def _share(self, in_flight: int, waiting: float, load: float, growth: float) -> None:
        """One step towards what the others have, and towards a short waiting queue."""
        if in_flight > self._value * SHARED_EXCESS:
            return
        kept = self._value * max(SHARED_CUT, 1 - SHARED_PRICE * waiting / load)
        short = waiting <= max(1.0, load * SHARED_WAITING_SHARE)
        added = load * growth if short and self._is_used(in_flight) else 0.0
        self._value = min(self._most, max(1.0, kept + added))

    def _is_used(self, in_flight: int) -> bool:
        return in_flight >= int(self._value) * SATURATED_SHARE

    def _grow(self, telemetry: Telemetry) -> None:
        empty = telemetry.kv_usage is not None and telemetry.kv_usage <= KV_EMPTY_SHARE and not self._refused
        growth = GROWTH_EMPTY if empty else GROWTH
        self._value = min(self._most, max(self._value + 1.0, self._value * growth))

    def unmeasured(self) -> None:
        """Go by the answers from here on, where the server tells its load no more."""
        self._unmeasured += 1
        if self._telemetry and self._unmeasured >= UNMEASURED_MAX:
            self._telemetry = False
            self._climb = Climb(self._value, self._most)

    def _first_telemetry(self, telemetry: Telemetry) -> None:
        if not self._telemetry and telemetry.kv_max_concurrency is not None:
            self._value = max(1.0, min(self._value, telemetry.kv_max_concurrency / self._sharers))
        self._telemetry = True
        self._unmeasured = 0

    def _preempted(self, telemetry: Telemetry) -> bool:
        before, self._preemptions = self._preemptions, telemetry.preemptions_total
        return before is not None and self._preemptions is not None and self._preemptions > before

"""What can go wrong with a fake server, and when: records that say it, and the plain object that decides.

Nothing here does anything: `FaultScript.decide` is told of a request and returns the faults that it meets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from random import Random

import msgspec

from dispatcher.testing.answers import ANSWERS
from dispatcher.testing.refusals import JSON


class _Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag=str.lower):
    """In JSON, a fault's `kind` is its name in lower case: `{"kind": "slow", "seconds": 2}`."""


class Slow(_Fault, frozen=True):
    """The answer takes `seconds` more. It adds to whatever else the request meets."""

    seconds: float


class Respond(_Fault, frozen=True):
    """Answer this instead. The engine does not see the request."""

    status: int
    body: str = ""
    content_type: str = JSON
    headers: dict[str, str] = {}


class Reset(_Fault, frozen=True):
    """Break the connection with a TCP reset, after the request was read."""


class Drop(_Fault, frozen=True):
    """Close the connection in good order, after the request was read and before any byte of an answer.

    With `Match(reused=True, probability=0.3)` it is a server whose idle time-out met the request.
    """


class Hang(_Fault, frozen=True):
    """Never answer. The connection stays open."""


class Spoilage(StrEnum):
    """How a good answer is spoiled."""

    CUT = auto()  # half of the bytes that Content-Length announces, then the end
    GARBAGE = auto()  # bytes that are not JSON
    BARE_NAN = auto()  # NaN as a number, in logprobs or in an embedding
    NO_FINISH_REASON = auto()  # `finish_reason` null; a stream ends without any
    WRONG_MODEL = auto()  # the answer names another model
    STREAM_ERROR = auto()  # an SSE error event and [DONE], whether or not a stream was asked for
    STREAM_END = auto()  # an SSE stream with text that ends without a finish_reason and without [DONE]


class Spoil(_Fault, frozen=True):
    """The engine does its work, and the answer comes out spoiled."""

    how: Spoilage


class Ending(StrEnum):
    """What the requests in flight get when their engine dies."""

    ENGINE_CORE = auto()  # 500 with vLLM's EngineCore JSON
    EMPTY = auto()  # 500 without a body (older versions)
    TEXT = auto()  # 500 `Internal Server Error` (older versions)
    RESET = auto()  # a TCP reset
    SILENCE = auto()  # no answer and no close, as after a SIGTERM (seen on vLLM 0.32.0)


class Die(_Fault, frozen=True):
    """The engine dies: all in flight get `ending`, /health answers once more, then nobody listens.

    After `seconds` the server is back as a new process; None leaves it down until `restart`.
    """

    seconds: float | None = 2.0
    ending: Ending = Ending.ENGINE_CORE
    last_health: int = 503
    """The status of the one /health answer that is still given."""
    linger_s: float = 0.1
    """How long the listener stays open for that answer; 0 closes it at once."""


class Refuse(_Fault, frozen=True):
    """Nobody listens for `seconds`, and idle connections close. Requests in flight go on, this one too."""

    seconds: float


class Freeze(_Fault, frozen=True):
    """The engine stands still for `seconds`, None for ever. /health stays 200, /metrics shows 0 running."""

    seconds: float | None = None


Strike = Respond | Reset | Drop | Hang | Spoil | Die | Refuse | Freeze
"""A fault that decides how a request ends."""

Fault = Slow | Strike


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests meet a fault: those for which everything given here holds."""

    text: str | None = None
    """This text stands in the body."""
    route: str | None = None
    """The request's path, e.g. `/health`. None means every route that is posted to."""
    reused: bool | None = None
    """Whether its connection has carried a request before."""
    in_flight_min: int = 0
    """At least so many other requests are in flight."""
    after: int = 0
    """So many requests for which the above holds are let through first."""
    first: int | None = None
    """Only so many of those that follow are considered."""
    probability: float = 1.0
    """The share of the rest that meets the fault."""
    seed: int = 0
    """Of the choice that `probability` makes."""


ANY = Match()


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the script is told of a request."""

    route: str
    body: bytes
    reused: bool
    in_flight: int
    """Other requests that are in flight on the server."""


@dataclass(slots=True, eq=False)
class Injection:
    """A fault that is in force."""

    id: int
    fault: Fault
    match: Match
    times: int | None
    """It fires at most so often."""
    seen: int = 0
    """Requests that it could have met, before `after`, `first` and `probability`."""
    fired: int = 0


class FaultScript:
    """The faults in force, in the order of their injection."""

    def __init__(self) -> None:
        self._injections: dict[int, tuple[Injection, Random]] = {}
        self._next_id = 1

    def inject(self, fault: Fault, match: Match = ANY, times: int | None = None) -> Injection:
        """Put a fault in force, at most `times` times (None: for ever)."""
        injection = Injection(self._next_id, fault, match, times)
        self._next_id += 1
        self._injections[injection.id] = (injection, Random(match.seed))
        return injection

    def withdraw(self, injection_id: int) -> bool:
        """Lift one fault; False where there is none of that id."""
        return self._injections.pop(injection_id, None) is not None

    def clear(self) -> None:
        """Lift all faults."""
        self._injections.clear()

    def injections(self) -> Sequence[Injection]:
        """The faults in force."""
        return [injection for injection, _ in self._injections.values()]

    def decide(self, arrival: Arrival) -> tuple[float, Strike | None]:
        """The seconds of delay, and the fault, that this request meets.

        Delays add up; of the others the first wins, and those behind it are not used up.
        """
        delay_s = 0.0
        chosen: Strike | None = None
        for injection, random in self._injections.values():
            match injection.fault:
                case Slow(seconds=seconds):
                    delay_s += seconds if _fires(injection, random, arrival) else 0.0
                case fault if chosen is None and _fires(injection, random, arrival):
                    chosen = fault
                case _:
                    continue
        return delay_s, chosen


def _fires(injection: Injection, random: Random, arrival: Arrival) -> bool:
    match = injection.match
    if not _concerns(match, arrival):
        return False
    position = injection.seen - match.after
    injection.seen += 1
    considered = position >= 0 and (match.first is None or position < match.first)
    spent = injection.times is not None and injection.fired >= injection.times
    if not considered or spent or random.random() >= match.probability:
        return False
    injection.fired += 1
    return True


def _concerns(match: Match, arrival: Arrival) -> bool:
    return (
        (arrival.route == match.route if match.route else arrival.route in ANSWERS)
        and (match.text is None or match.text.encode() in arrival.body)
        and (match.reused is None or match.reused == arrival.reused)
        and arrival.in_flight >= match.in_flight_min
    )

"""A server's life as one transition table. No I/O, no clock: events come with their time."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum, auto

from dispatcher.errors import IllegalTransitionError

HISTORY_MAX = 32
"""Moves remembered per server, for the log and the operator."""
NOT_ANSWERED = "not answered yet"


class State(StrEnum):
    """Where a server stands. Only an active one is given requests."""

    JOINING = auto()  # has not answered yet: loading its model, or not started
    VERIFYING = auto()  # answers; model list, wakefulness and a one-token canary are being checked
    ACTIVE = auto()
    SUSPECT = auto()  # soft evidence against it: no new requests until a canary decides
    EVICTED = auto()  # dead or hung; readmission is earned by probes
    PAUSED = auto()  # asleep
    MISMATCHED = auto()  # refuses our key, or serves another model than it lists
    DRAINING = auto()  # withdrawn: its open requests may end, nothing new is sent
    GONE = auto()


class Event(StrEnum):
    """What can happen to a server."""

    ANSWERED = auto()  # a probe was answered with health
    VERIFIED = auto()  # inspection and canary passed
    FAILED = auto()  # inspection or canary did not pass
    DOUBTED = auto()  # soft evidence: repeated doubtful answers, a reset, a stall
    DIED = auto()  # hard evidence: refused, health 503, engine dead
    SLEPT = auto()
    MISMATCHED = auto()
    RESTARTED = auto()  # its process start time changed
    WITHDRAWN = auto()  # removed from the list, or drained by an operator
    RETURNED = auto()  # listed again while draining
    DRAINED = auto()  # nothing of ours is open there any more


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.JOINING, Event.ANSWERED): State.VERIFYING,
    (State.VERIFYING, Event.VERIFIED): State.ACTIVE,
    (State.VERIFYING, Event.FAILED): State.EVICTED,
    (State.VERIFYING, Event.DIED): State.EVICTED,
    (State.VERIFYING, Event.SLEPT): State.PAUSED,
    (State.VERIFYING, Event.MISMATCHED): State.MISMATCHED,
    (State.ACTIVE, Event.DOUBTED): State.SUSPECT,
    (State.ACTIVE, Event.DIED): State.EVICTED,
    (State.ACTIVE, Event.SLEPT): State.PAUSED,
    (State.ACTIVE, Event.MISMATCHED): State.MISMATCHED,
    (State.ACTIVE, Event.RESTARTED): State.VERIFYING,
    (State.SUSPECT, Event.VERIFIED): State.ACTIVE,
    (State.SUSPECT, Event.FAILED): State.EVICTED,
    (State.SUSPECT, Event.DIED): State.EVICTED,
    (State.SUSPECT, Event.SLEPT): State.PAUSED,
    (State.SUSPECT, Event.MISMATCHED): State.MISMATCHED,
    (State.SUSPECT, Event.RESTARTED): State.VERIFYING,
    (State.EVICTED, Event.ANSWERED): State.VERIFYING,
    (State.PAUSED, Event.VERIFIED): State.ACTIVE,
    (State.PAUSED, Event.FAILED): State.EVICTED,
    (State.PAUSED, Event.DIED): State.EVICTED,
    (State.PAUSED, Event.MISMATCHED): State.MISMATCHED,
    (State.MISMATCHED, Event.VERIFIED): State.ACTIVE,
    (State.MISMATCHED, Event.FAILED): State.EVICTED,
    (State.MISMATCHED, Event.DIED): State.EVICTED,
    (State.MISMATCHED, Event.SLEPT): State.PAUSED,
    **{
        (state, Event.WITHDRAWN): State.DRAINING
        for state in State
        if state not in (State.DRAINING, State.GONE)
    },
    (State.DRAINING, Event.RETURNED): State.VERIFYING,
    (State.DRAINING, Event.DRAINED): State.GONE,
}


@dataclass(frozen=True, slots=True)
class Move:
    """One transition that took place. `at` is monotonic seconds."""

    at: float
    before: State
    event: Event
    after: State
    reason: str
    plain: str = ""
    """The reason without a server's words, which can repeat a prompt: what a log may hold."""


class Machine:
    """One server's state with its history."""

    __slots__ = ("history", "since", "state")

    def __init__(self, now: float) -> None:
        self.state = State.JOINING
        self.since = now
        self.history: deque[Move] = deque(maxlen=HISTORY_MAX)

    def allows(self, event: Event) -> bool:
        """Whether the table has this move from the present state."""
        return (self.state, event) in TRANSITIONS

    def move(self, event: Event, reason: str, now: float, plain: str | None = None) -> Move:
        """Take the move and remember it. Raises IllegalTransitionError for one not in the table.

        `plain` is the reason as a log may hold it; None where `reason` has no words of a server's.
        """
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            past = "; ".join(f"{m.before} -{m.event}-> {m.after} ({m.reason})" for m in self.history)
            raise IllegalTransitionError(f"no move {event} from {self.state}; history: {past or 'none'}")
        move = Move(now, self.state, event, after, reason, reason if plain is None else plain)
        self.history.append(move)
        self.state, self.since = after, now
        return move

    @property
    def reason(self) -> str:
        """Why it stands where it stands."""
        return self.history[-1].reason if self.history else NOT_ANSWERED

    @property
    def plain(self) -> str:
        """The same without a server's words."""
        return self.history[-1].plain if self.history else NOT_ANSWERED

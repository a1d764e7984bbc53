"""What happens to a client's request after a send that was not a success: its one retry policy. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, assert_never

from dispatcher.model import Judgement, ServerId, Verdict

RESENDS_MAX: Final = 10
"""Sends that nothing is charged for, after faults of this machine and stale connections."""
OVERLOADS_MAX: Final = 30
"""Busy servers that a request may meet: three minutes or so, where there is no other."""
PAUSE_S_MIN: Final = 0.25
PAUSE_S_MAX: Final = 8.0
LOCAL_PAUSE_S: Final = 1.0
"""After a fault of this machine, which a resend at once would meet again."""


@dataclass(slots=True)
class Course:
    """What has become of one request so far."""

    sends: int = 0
    charged: int = 0
    resends: int = 0
    overloads: int = 0
    seconds: float = 0.0
    """Duration of the last send."""
    tried: set[ServerId] = field(default_factory=set)
    """Servers that it is not to be sent to again, if there are others."""
    busy: ServerId | None = None
    """The server that was too busy for its last send."""

    @property
    def avoided(self) -> set[ServerId]:
        """Servers that the next send is not to go to, if there are others."""
        return self.tried if self.busy is None else {*self.tried, self.busy}


@dataclass(frozen=True, slots=True)
class Policy:
    """How often a request is sent.

    `max_attempts` counts the sends that are charged: doubtful answers, and broken servers once each server
    has been tried. `spread` gives a number from 0 to 1, evenly: pauses of requests that failed together
    must not end together.
    """

    max_attempts: int
    spread: Callable[[], float]

    def pause_after(
        self, course: Course, judgement: Judgement, server: ServerId, *, others: bool
    ) -> float | None:
        """Note the fault; give the seconds to wait before the next send, or None where this was the last.

        `others`: whether there is a server that the request has not been sent to.
        """
        pause_s: float | None
        match judgement.verdict:
            case Verdict.REQUEST_FAULT:
                pause_s = None
            case Verdict.MISMATCH:
                pause_s = 0.0 if others else None
            case Verdict.SERVER_FAULT | Verdict.STALLED:
                pause_s = 0.0 if others else self._charge(course)
            case Verdict.DOUBTFUL:
                pause_s = self._charge(course)
            case Verdict.OVERLOAD:
                asked_s = 0.0 if others else judgement.retry_after_s or 0.0
                pause_s = self._wait_for_room(course, asked_s)
            case Verdict.LOCAL_FAULT:
                pause_s = self._resend(course, LOCAL_PAUSE_S)
            case Verdict.STALE_CONNECTION:
                pause_s = self._resend(course, 0.0)
            case Verdict.SUCCESS:
                raise AssertionError("a success needs no retry")
            case _ as never:
                assert_never(never)
        if judgement.verdict in _AVOIDED:
            course.tried.add(server)
        course.busy = server if judgement.verdict is Verdict.OVERLOAD else None
        return pause_s

    def _charge(self, course: Course) -> float | None:
        course.charged += 1
        return None if course.charged >= self.max_attempts else self._pause(course.charged - 1)

    def _wait_for_room(self, course: Course, asked_s: float) -> float | None:
        course.overloads += 1
        return None if course.overloads > OVERLOADS_MAX else asked_s + self._pause(course.overloads - 1)

    @staticmethod
    def _resend(course: Course, pause_s: float) -> float | None:
        course.resends += 1
        return None if course.resends > RESENDS_MAX else pause_s

    def _pause(self, earlier: int) -> float:
        """Doubled with each one before it; between half and all of that."""
        return min(PAUSE_S_MIN * 2.0**earlier, PAUSE_S_MAX) * (1 + self.spread()) / 2


_AVOIDED: Final = frozenset({Verdict.MISMATCH, Verdict.SERVER_FAULT, Verdict.STALLED, Verdict.DOUBTFUL})

"""The limit of a server that tells nothing of its load, found by trying: what do more permits bring?"""

from enum import Enum, auto

STEP_UP = 1.5
GAIN_MIN = 1.05
"""What half as many permits more must bring in answers a second, or they only wait in the server's queue."""
STEP_DOWN = 0.67
LOSS_MAX = 0.95
"""The share of the best pace that a third fewer permits must keep up, or the server stands idle in part."""
TURNOVERS = 3
ANSWERS_MIN = 600
"""A pace is taken over three answers for each permit, and 600 at least. As lengths vary by about half of
their mean, it is then known to 3 %."""
FULL_SHARE = 0.8
"""Of the permits, so many must be in use for an answer to tell of the limit;"""
FULL_ANSWERS = 0.9
"""and of a pace's answers, so many must have come while they were."""
RESTS = 4
"""Paces between two rounds of trials: loads and lengths change."""


class _Trial(Enum):
    BASE = auto()
    UP = auto()
    DOWN = auto()
    REST = auto()


class Climb:
    """Tries more permits, then fewer, and keeps what brings more answers a second, or as many with less.

    After each change one answer for each permit passes before the pace is taken: those were sent before it.
    """

    __slots__ = (
        "_answers",
        "_base",
        "_best_pace",
        "_full_answers",
        "_most",
        "_rests",
        "_since",
        "_trial",
        "value",
    )

    def __init__(self, value: float, most: float) -> None:
        self.value = value
        self._most = most
        self._base = value
        self._best_pace = 0.0
        self._trial = _Trial.BASE
        self._rests = 0
        self.begin()

    def begin(self) -> None:
        """Take the pace anew: the limit was changed, or the server was away."""
        self._answers = -int(self.value)  # sent before the change
        self._full_answers = 0
        self._since = 0.0

    def answered(self, in_flight: int, now: float) -> None:
        """An answer came, while so many other requests were open."""
        self._answers += 1
        if self._answers <= 0:
            self._since = now
            return
        self._full_answers += in_flight + 1 >= self.value * FULL_SHARE
        if self._answers >= max(ANSWERS_MIN, TURNOVERS * self.value):
            self._take_pace(now)
            self.begin()

    def _take_pace(self, now: float) -> None:
        if self._full_answers >= self._answers * FULL_ANSWERS and now > self._since:
            self._decide(self._answers / (now - self._since))

    def _decide(self, pace: float) -> None:
        match self._trial:
            case _Trial.BASE:
                self._best_pace = pace
                self._try(_Trial.UP)
            case _Trial.UP if pace >= self._best_pace * GAIN_MIN:
                self._keep(pace)
                self._try(_Trial.UP)
            case _Trial.UP:
                self._try(_Trial.DOWN)
            case _Trial.DOWN if pace >= self._best_pace * LOSS_MAX:
                self._keep(pace)
                self._try(_Trial.DOWN)
            case _Trial.DOWN:
                self.value, self._rests, self._trial = self._base, 0, _Trial.REST
            case _Trial.REST:
                self._rests += 1
                if self._rests == RESTS:
                    self._trial = _Trial.BASE

    def _keep(self, pace: float) -> None:
        self._base, self._best_pace = self.value, max(pace, self._best_pace)

    def _try(self, trial: _Trial) -> None:
        step = STEP_UP if trial is _Trial.UP else STEP_DOWN
        self._trial = trial
        self.value = min(self._most, max(1.0, self._base * step))

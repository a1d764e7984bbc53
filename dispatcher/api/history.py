"""Throughput over the last hour, kept in memory. No clock: counts come with their time."""

from collections import deque
from dataclasses import dataclass

STEP_S = 10.0
POINTS_MAX = 360
"""An hour: what the dashboard's plot shows."""


@dataclass(frozen=True, slots=True)
class Point:
    """What was done from `at`, monotonic seconds, for one step."""

    at: float
    rows: int
    tokens: int


class History:
    """A ring of steps. A step in which nothing was counted, as this process stood still, is missing."""

    __slots__ = ("_at", "_points", "_rows", "_step_s", "_tokens")

    def __init__(self, now: float, step_s: float = STEP_S, points_max: int = POINTS_MAX) -> None:
        self._step_s = step_s
        self._points: deque[Point] = deque(maxlen=points_max)
        self._at = now
        self._rows = self._tokens = 0

    def add(self, rows: int, tokens: int, now: float) -> None:
        """Count what was done since the last call. Called at least once a step, or steps are missing."""
        if now - self._at >= self._step_s:
            self._points.append(Point(self._at, self._rows, self._tokens))
            self._at += (now - self._at) // self._step_s * self._step_s
            self._rows = self._tokens = 0
        self._rows += rows
        self._tokens += tokens

    def points(self, now: float) -> list[Point]:
        """The whole steps of the last hour, oldest first."""
        oldest = now - self._step_s * (self._points.maxlen or 0)
        return [point for point in self._points if point.at + self._step_s > oldest]

    def latest(self) -> Point | None:
        """The last whole step; None before there was one."""
        return self._points[-1] if self._points else None

"""What a dashboard shows of each owner's jobs: a look at it costs as much as there are open jobs."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dispatcher.jobs.keeper import JobKeeper
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.life import ENDED
from dispatcher.jobs.view import JobView, Now, view_of

ENDED_SHOWN_MAX = 50

EVERYBODY = None
"""Stands for the owner where all jobs are meant."""


@dataclass(frozen=True, slots=True)
class Overview:
    """One owner's jobs at one moment."""

    open: Sequence[JobView] = ()
    """Those that have not ended, the latest first."""
    ended: Sequence[JobView] = ()
    """The last that ended, the latest first."""
    total: int = 0
    """How many jobs there are."""


class Overviews:
    """Overviews of the keeper's jobs. Those that have ended are gone through only when some job has moved."""

    def __init__(self, keeper: JobKeeper) -> None:
        self._keeper = keeper
        self._moves = -1
        self._open: list[Kept] = []
        self._ended: Mapping[str | None, Sequence[JobView]] = {}
        self._totals: Counter[str | None] = Counter()

    def all(self, now: Now) -> Mapping[str | None, Overview]:
        """By owner; under EVERYBODY all jobs together. Owners without jobs are missing."""
        if self._moves != self._keeper.moves:
            self._sort(self._keeper.jobs.values(), now)
            self._moves = self._keeper.moves
        opened: defaultdict[str | None, list[JobView]] = defaultdict(list)
        for kept in self._open:
            view = view_of(kept, now)
            opened[kept.details.owner].append(view)
            opened[EVERYBODY].append(view)
        return {
            owner: Overview(opened[owner], self._ended.get(owner, ()), total)
            for owner, total in self._totals.items()
        }

    def _sort(self, jobs: Iterable[Kept], now: Now) -> None:
        ended: defaultdict[str | None, list[Kept]] = defaultdict(list)
        self._open, self._totals = [], Counter()
        for kept in jobs:
            owners = (kept.details.owner, EVERYBODY)
            self._totals.update(owners)
            if kept.stage in ENDED:
                for owner in owners:
                    ended[owner].append(kept)
            else:
                self._open.append(kept)
        self._open.reverse()
        self._ended = {
            owner: [view_of(kept, now) for kept in heapq.nlargest(ENDED_SHOWN_MAX, theirs, key=_ended_at)]
            for owner, theirs in ended.items()
        }


def _ended_at(kept: Kept) -> float:
    return kept.details.at(kept.stage) or 0.0

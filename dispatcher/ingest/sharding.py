"""Cutting lines into shards."""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from dispatcher.jsonl import LINE_BYTES_MAX, Line
from dispatcher.model import Shard


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """What the scan holds lines to, and where it cuts."""

    shard_size: int = 256
    """Lines in a shard, at most."""
    tail_size: int | None = None
    """Lines in each of the last shards, for several nodes to share the end of a job. None: as all others."""
    shard_bytes_max: int = 8 << 20
    """Bytes in a shard, at most, unless a single line is longer: a shard is read into memory whole."""
    line_bytes_max: int = LINE_BYTES_MAX
    """A longer line is rejected."""
    route: str | None = None
    """The only `url` that is valid; None: any that is known."""


DEFAULT_LIMITS = ScanLimits()


TAIL_SHARDS = 4
"""So many shards' worth of lines before the last one, and that, are cut smaller where it is asked for."""


class _Cut(NamedTuple):
    """One line that will stand in a shard."""

    offset: int
    end: int
    rejected: bool


class Sharder:
    """Collects lines into shards: a plain object that is given every non-blank line in order."""

    def __init__(self, limits: ScanLimits) -> None:
        self.shards = 0
        self.lines = 0
        self._limits = limits
        self._size = limits.shard_size
        self._first_index = 0
        self._cuts: list[_Cut] = []
        self._held: deque[list[_Cut]] = deque()
        """What may turn out to be the tail: whole shards, not numbered yet."""

    def add(self, line: Line, *, rejected: bool) -> Shard | None:
        """Take the next line; return the shard that it completes or no longer fits into.

        Where the tail is to be cut smaller, that is the shard that was completed four shards ago.
        """
        cut = _Cut(line.offset, line.offset + line.length, rejected)
        closed = self._close() if self._is_full(cut) else None
        self._cuts.append(cut)
        self.lines += 1
        return closed

    def finish(self) -> list[Shard]:
        """The shards of the lines since the last one that was returned; none where there are none."""
        rest = [*(cut for held in self._held for cut in held), *self._cuts]
        self._held.clear()
        self._cuts = []
        self._size = self._limits.tail_size or self._limits.shard_size
        shards: list[Shard] = []
        for cut in rest:
            if self._is_full(cut):
                shards.append(self._shard(self._cuts))
                self._cuts = []
            self._cuts.append(cut)
        if self._cuts:
            shards.append(self._shard(self._cuts))
            self._cuts = []
        return shards

    def _is_full(self, following: _Cut) -> bool:
        if not self._cuts:
            return False
        length = following.end - self._cuts[0].offset
        return len(self._cuts) == self._size or length > self._limits.shard_bytes_max

    def _close(self) -> Shard | None:
        cuts, self._cuts = self._cuts, []
        if self._limits.tail_size is None:
            return self._shard(cuts)
        self._held.append(cuts)
        return self._shard(self._held.popleft()) if len(self._held) > TAIL_SHARDS else None

    def _shard(self, cuts: list[_Cut]) -> Shard:
        first, offset = self._first_index, cuts[0].offset
        rejected = tuple(index for index, cut in enumerate(cuts, first) if cut.rejected)
        shard = Shard(self.shards, first, len(cuts), offset, cuts[-1].end - offset, rejected)
        self.shards += 1
        self._first_index += len(cuts)
        return shard

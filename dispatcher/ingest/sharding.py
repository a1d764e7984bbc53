"""Cutting lines into shards."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

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


TAIL_SHARE = 8
"""Where several share a job its last shards are an eighth of the others' size, to be shared in the end."""
TAIL_SHARDS = 4
"""So many shards' worth of lines before the last one, and that, are cut smaller where it is asked for."""


Cut = tuple[int, int, bool]
"""A line's first byte, the one after its last, and whether it was rejected."""


class Sharder:
    """Collects lines into shards: a plain object that is given every non-blank line in order."""

    def __init__(self, limits: ScanLimits) -> None:
        self.shards = 0
        self.lines = 0
        self._limits = limits
        self._size = limits.shard_size
        self._start = self._end = 0
        self._count = 0
        self._rejected: list[int] = []
        self._held: deque[Shard] = deque()
        """The last shards, where the tail is to be cut smaller."""
        self._cuts: deque[Cut] | None = None if limits.tail_size is None else deque()
        """The lines of the held shards, and of the one that is open."""

    def add(self, line: Line, *, rejected: bool) -> Shard | None:
        """Take the next line; return the shard that it completes or no longer fits into.

        Where the tail is to be cut smaller, that is the shard that was completed four shards ago.
        """
        end = line.offset + line.length
        closed = self._take(line.offset, end, rejected)
        if self._cuts is None:
            return closed
        self._cuts.append((line.offset, end, rejected))
        if closed is not None:
            self._held.append(closed)
        return self._let_go() if len(self._held) > TAIL_SHARDS else None

    def finish(self) -> list[Shard]:
        """The shards of the lines since the last one that was returned; none where there are none."""
        shards = [] if self._cuts is None else self._cut_again(self._cuts)
        return shards if self._count == 0 else [*shards, self._close()]

    def _take(self, offset: int, end: int, rejected: bool) -> Shard | None:  # noqa: FBT001  # a tuple's members
        full = self._count == self._size or end - self._start > self._limits.shard_bytes_max
        closed = self._close() if full and self._count else None
        if self._count == 0:
            self._start = offset
        if rejected:
            self._rejected.append(self.lines)
        self._end = end
        self._count += 1
        self.lines += 1
        return closed

    def _close(self) -> Shard:
        first_index = self.lines - self._count
        length = self._end - self._start
        shard = Shard(self.shards, first_index, self._count, self._start, length, tuple(self._rejected))
        self.shards += 1
        self._count = 0
        self._rejected.clear()
        return shard

    def _let_go(self) -> Shard:
        """The first held shard is not of the tail."""
        assert self._cuts is not None, "nothing is held without its lines"
        shard = self._held.popleft()
        for _ in range(shard.count):
            self._cuts.popleft()
        return shard

    def _cut_again(self, cuts: Iterable[Cut]) -> list[Shard]:
        """The shards that are held, and the open one, once more and smaller; the last of them stays open."""
        self.shards -= len(self._held)
        self.lines -= self._count + sum(shard.count for shard in self._held)
        self._size = self._limits.tail_size or self._size
        self._count = 0
        self._rejected.clear()
        return [closed for cut in cuts if (closed := self._take(*cut)) is not None]

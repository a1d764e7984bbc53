"""Cutting lines into shards."""

from dataclasses import dataclass

from dispatcher.jsonl import LINE_BYTES_MAX, Line
from dispatcher.model import Shard


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """What the scan holds lines to, and where it cuts."""

    shard_size: int = 256
    """Lines in a shard, at most."""
    shard_bytes_max: int = 8 << 20
    """Bytes in a shard, at most, unless a single line is longer: a shard is read into memory whole."""
    line_bytes_max: int = LINE_BYTES_MAX
    """A longer line is rejected."""
    route: str | None = None
    """The only `url` that is valid; None: any that is known."""


DEFAULT_LIMITS = ScanLimits()


class Sharder:
    """Collects lines into shards: a plain object that is given every non-blank line in order."""

    def __init__(self, limits: ScanLimits) -> None:
        self.shards = 0
        self.lines = 0
        self._limits = limits
        self._start = self._end = 0
        self._count = 0
        self._rejected: list[int] = []

    def add(self, line: Line, *, rejected: bool) -> Shard | None:
        """Take the next line; return the shard that it completes or no longer fits into."""
        end = line.offset + line.length
        full = self._count == self._limits.shard_size or end - self._start > self._limits.shard_bytes_max
        closed = self.close() if full else None
        if self._count == 0:
            self._start = line.offset
        if rejected:
            self._rejected.append(self.lines)
        self._end = end
        self._count += 1
        self.lines += 1
        return closed

    def close(self) -> Shard | None:
        """The shard of the lines since the last one; None where there are none."""
        if self._count == 0:
            return None
        first_index = self.lines - self._count
        length = self._end - self._start
        shard = Shard(self.shards, first_index, self._count, self._start, length, tuple(self._rejected))
        self.shards += 1
        self._count = 0
        self._rejected.clear()
        return shard

"""How fast each server and the whole fleet work, from counts that only grow. No clock."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from dispatcher.model import ServerId
from dispatcher.pool.server import Server

WINDOW_S = 30.0
SAMPLE_EVERY_S = 3.0
"""A sample per server and second would be most of what a large fleet's dashboard costs."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Answered rows and generated tokens a second."""

    rows_per_s: float = 0.0
    tokens_per_s: float = 0.0


NO_RATES = Rates()


@dataclass(slots=True)
class _Counts:
    """A server's counts at the last look, and those of the window, oldest first."""

    succeeded: int
    tokens: int
    samples: deque[tuple[float, int, int]] = field(default_factory=deque)


class Meter:
    """Rates over half a minute, of what servers have answered, to jobs and to live requests alike."""

    def __init__(self, now: float) -> None:
        self._servers: dict[ServerId, _Counts] = {}
        self._all = _Counts(0, 0, deque([(now, 0, 0)]))
        self._looked_at = self._sampled_at = now

    def look(self, servers: Iterable[Server], now: float) -> tuple[int, int]:
        """Take in where the counts stand: the rows and tokens that came up since the last look.

        Of a server that is gone, and of the seconds before it went, what was not looked at is not counted.
        """
        self._looked_at = now
        sampling = now - self._sampled_at >= SAMPLE_EVERY_S
        self._sampled_at = now if sampling else self._sampled_at
        seen = {server.spec.id: server for server in servers}
        for gone in self._servers.keys() - seen.keys():
            del self._servers[gone]
        deltas = [self._take(server, now, sampling=sampling) for server in seen.values()]
        rows, tokens = sum(rows for rows, _ in deltas), sum(tokens for _, tokens in deltas)
        self._all.succeeded += rows
        self._all.tokens += tokens
        if sampling:
            _sample(self._all, now)
        return rows, tokens

    def of(self, server: Server) -> Rates:
        """One server's rates at the last look; zero before its second one."""
        counts = self._servers.get(server.spec.id)
        return NO_RATES if counts is None else self._rates(counts)

    def of_all(self) -> Rates:
        """The fleet's rates, servers that are gone since included."""
        return self._rates(self._all)

    def _rates(self, counts: _Counts) -> Rates:
        at, succeeded, tokens = counts.samples[0]
        seconds = self._looked_at - at
        if seconds <= 0:
            return NO_RATES
        return Rates((counts.succeeded - succeeded) / seconds, (counts.tokens - tokens) / seconds)

    def _take(self, server: Server, now: float, *, sampling: bool) -> tuple[int, int]:
        record = server.record
        counts = self._servers.get(server.spec.id)
        if counts is None or counts.succeeded > record.succeeded:  # it went and came back, with a new record
            begin = deque([(now, record.succeeded, record.tokens)])
            counts = self._servers[server.spec.id] = _Counts(0, 0, begin)
        rows, tokens = record.succeeded - counts.succeeded, record.tokens - counts.tokens
        counts.succeeded, counts.tokens = record.succeeded, record.tokens
        if sampling:
            _sample(counts, now)
        return rows, tokens


def _sample(counts: _Counts, now: float) -> None:
    counts.samples.append((now, counts.succeeded, counts.tokens))
    while len(counts.samples) > 1 and now - counts.samples[0][0] > WINDOW_S:
        counts.samples.popleft()

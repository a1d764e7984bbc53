"""What the operator is told: counts, rates and how long it will take."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dispatcher.model import Outcome, ServerId, Tally

RATE_WINDOW_S = 60.0
"""Rates are over the last minute, or over the time since the start where that is shorter."""


@dataclass(slots=True)
class Progress:
    """Durable outcomes of this run, with rates. Times are monotonic seconds."""

    started_at: float
    earlier: Tally = field(default_factory=Tally)
    """What runs before this one had recorded, less what the shards had that were lost since."""
    tally: Tally = field(default_factory=Tally)
    """What this run has recorded."""
    by_server: Counter[ServerId] = field(default_factory=Counter)
    """Successes of this run by the server that answered."""
    _samples: deque[tuple[float, int, int]] = field(default_factory=deque)

    def recorded(self, outcomes: Sequence[Outcome]) -> None:
        """Count outcomes that have become durable."""
        self.tally = self.tally.plus(outcomes)
        for outcome in outcomes:
            provenance = outcome.provenance
            if outcome.ok and provenance is not None and provenance.server is not None:
                self.by_server[ServerId(provenance.server)] += 1

    def replayed(self, tally: Tally) -> None:
        """Count outcomes that were found in a journal."""
        self.earlier += tally

    def lost(self, tally: Tally) -> None:
        """A shard was lost: whoever takes it over counts its outcomes, as found in the journal."""
        errors = {code: -count for code, count in tally.errors.items()}
        self.earlier += Tally(
            -tally.succeeded, -tally.failed, -tally.prompt_tokens, -tally.completion_tokens, errors
        )

    def sample(self, now: float) -> None:
        """Note where the counts stand: the rates are differences of samples."""
        done = self.tally.succeeded + self.tally.failed
        self._samples.append((now, done, self.tally.completion_tokens))
        while now - self._samples[0][0] > RATE_WINDOW_S and len(self._samples) > 1:
            self._samples.popleft()

    def rates(self, now: float) -> tuple[float, float]:
        """Rows and generated tokens a second."""
        at, rows, tokens = self._samples[0] if self._samples else (self.started_at, 0, 0)
        seconds = max(1e-3, now - at)
        done = self.tally.succeeded + self.tally.failed
        return (done - rows) / seconds, (self.tally.completion_tokens - tokens) / seconds

    @property
    def total(self) -> Tally:
        """All durable outcomes of the job that this node knows of."""
        return self.earlier + self.tally

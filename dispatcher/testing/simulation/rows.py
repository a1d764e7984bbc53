"""A simulated job's rows: each is a function of the seed and its index, so that none need be kept."""

import math
from dataclasses import dataclass, field
from enum import StrEnum, auto
from statistics import NormalDist

from dispatcher.model import Request

ROUTE = "/v1/chat/completions"
_MASK = (1 << 64) - 1
_NORMAL = NormalDist()


class RowKind(StrEnum):
    """What is the matter with a row."""

    GOOD = auto()
    TOO_LONG = auto()  # 400, context length, on every server
    BROKEN = auto()  # a plain 500 on every server
    NAN = auto()  # answered well, with a bare NaN among the numbers
    SILENT = auto()  # never answered, on any server
    POISON = auto()  # its server's engine dies of it


FAULTY = (RowKind.TOO_LONG, RowKind.BROKEN, RowKind.SILENT, RowKind.POISON)
"""Rows that must end in an error; all others must not."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts: log-normal, with its long tail cut at `most`."""

    mean: float = 200.0
    spread: float = 0.5
    """Standard deviation of the logarithm: 0 makes all equal, 0.5 is usual, 1.2 has a long tail."""
    most: int = 4096

    def at(self, share: float) -> int:
        """The length that this share (0 to 1, exclusive) of all lie below. At least 1."""
        if self.spread == 0:
            return max(1, min(self.most, round(self.mean)))
        log = math.log(self.mean) - self.spread**2 / 2 + self.spread * _NORMAL.inv_cdf(share)
        return max(1, min(self.most, round(math.exp(log))))


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job: how many rows, how long they are, and which are odd."""

    rows: int
    prompt: Lengths = Lengths(mean=300.0)
    output: Lengths = Lengths(mean=200.0)
    models: tuple[str, ...] = ("model-a",)
    """Rows ask for these in turn."""
    odd: dict[int, RowKind] = field(default_factory=dict)
    """Rows that are not good, by index."""
    hints: bool = False
    """Whether the bodies give `max_tokens`: the row's output length, rounded up to a power of two."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row as the simulated servers see it."""

    index: int
    prompt_tokens: int
    output_tokens: int
    model: str
    kind: RowKind = RowKind.GOOD


class Rows:
    """A job's rows by index."""

    def __init__(self, plan: JobPlan, seed: int) -> None:
        self.plan = plan
        self._seed = seed

    def row(self, index: int) -> Row:
        """One row."""
        plan = self.plan
        return Row(
            index,
            plan.prompt.at(_share(self._seed, 2 * index)),
            plan.output.at(_share(self._seed, 2 * index + 1)),
            plan.models[index % len(plan.models)],
            plan.odd.get(index, RowKind.GOOD),
        )

    def request(self, index: int) -> Request:
        """The row as the dispatcher reads it."""
        model = self.plan.models[index % len(self.plan.models)]
        hint = b',"max_tokens":%d' % self._hint(index) if self.plan.hints else b""
        body = b'{"model":"%b","messages":[{"role":"user","content":"row %d"}]%b}'
        return Request(index, custom_id(index), ROUTE, model, body % (model.encode(), index, hint))

    def _hint(self, index: int) -> int:
        return 1 << (self.row(index).output_tokens - 1).bit_length()


def custom_id(index: int) -> str:
    """A row's `custom_id`."""
    return f"row-{index}"


def _share(seed: int, number: int) -> float:
    """A number between 0 and 1, exclusive: SplitMix64 (Steele, Lea, Flood 2014), which needs no state."""
    z = (seed * 0xD1342543DE82EF95 + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) + 0.5) / 2**64

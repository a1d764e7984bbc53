"""What scoring and classifying give back."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from dispatcher.errors import DispatcherError

Mode = Literal["one_call", "exact"]
Normalisation = Literal["sum", "mean", "bytes"]


class ScoringError(DispatcherError):
    """The server's answer cannot be scored. The message says what it was and what to do."""


class Boundary(StrEnum):
    """Where the completion begins in the tokens of prompt and completion written together."""

    TOKEN = "token"  # noqa: S105 - not a password
    """Between two tokens."""
    STRADDLED = "straddled"
    """Inside a token. Scored is the completion in tokens of its own, after the prompt's."""
    TEMPLATE = "template"
    """Nowhere: the chat template writes an answer otherwise than it asks for one (it trims it, or puts an
    empty thought before it). Scored is the completion in tokens of its own, after the prompt's."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One token of a completion."""

    id: int
    text: str
    """Empty for the first bytes of a character that the next token completes."""
    logprob: float
    """Natural logarithm of its probability after all tokens before it."""


@dataclass(frozen=True, slots=True)
class Score:
    """A completion's log-probability under a model, after a prompt."""

    tokens: tuple[ScoredToken, ...]
    boundary: Boundary

    @property
    def total(self) -> float:
        """The sum over the tokens, in nats. The end of the answer is not among them."""
        return sum(token.logprob for token in self.tokens)

    @property
    def mean(self) -> float:
        """Nats per token; `exp(-mean)` is the completion's perplexity."""
        return self.total / len(self.tokens)

    @property
    def straddles(self) -> bool:
        """Whether a token of the text as a whole holds both prompt and completion."""
        return self.boundary is Boundary.STRADDLED


@dataclass(frozen=True, slots=True)
class Method:
    """How a distribution over labels is found."""

    mode: Mode = "one_call"
    normalisation: Normalisation = "sum"
    """`exact`: what divides each label's log-probability before the softmax: 1 (`sum`), its tokens with its
    end (`mean`), or its UTF-8 bytes (`bytes`)."""
    max_calls: int | None = 8
    """`one_call`: generations, the first included; None: 1000."""
    unresolved_max: float = 0.01
    """`one_call`: share of the distribution that may stay unresolved though calls are left."""
    listed_max: int = 20
    """`one_call`: tokens listed at each place, at most the server's `--max-logprobs` (20 by default)."""


@dataclass(frozen=True, slots=True)
class Classification:
    """A distribution over labels."""

    label: str
    """The likeliest; of equals, the one that was given first."""
    probabilities: Mapping[str, float]
    """By label, in the order given. They sum to 1."""
    bounds: Mapping[str, tuple[float, float]]
    """What each probability is at least and at most, whatever the unresolved share would turn out to be."""
    mode: Mode
    coverage: float
    """Share of the distribution that is known to belong to one label, 0 to 1."""
    approximate: bool
    """Whether the rest, `1 - coverage`, is divided by estimate. False: these are the probabilities."""
    calls: int
    """Requests that the model computed for."""
    logprobs: Mapping[str, float] | None = None
    """`exact` only: each label's log-probability in nats, its end included, before any normalisation."""

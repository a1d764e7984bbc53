"""The masked distribution over labels: what is known of it, as a tree of tokens. Pure.

A node is a path of token ids. At each, the server tells the probabilities of the tokens that some label still
allows (its mask makes them sum to 1). A path whose text only one label can continue is that label's, with all
its mass: the mask leaves the model no other way. See docs/scoring.md.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from dispatcher.vllm.scoring.labels import INCOMPLETE, LabelSet

Path = tuple[int, ...]


@dataclass(slots=True)
class Step:
    """What may follow a node."""

    logprobs: dict[int, float]
    """By token id, in nats, under the mask."""
    complete: bool
    """Whether these are all allowed tokens. A server lists the likeliest 20 or so."""
    groups: list[tuple[str, ...]] = field(default_factory=list)
    """Labels whose tokens are still to be listed, group by group; filled when listing begins."""

    @property
    def hidden(self) -> float:
        """The probability of the tokens that are not listed."""
        return 0.0 if self.complete else max(0.0, 1.0 - sum(map(math.exp, self.logprobs.values())))


class Kind(Enum):
    """What is known of a part of the distribution."""

    LABEL = auto()
    """It belongs to one label."""
    NODE = auto()
    """Several labels can continue its text, and what follows it has not been seen."""
    HIDDEN = auto()
    """Tokens that are allowed here and were not listed."""
    UNSPELLED = auto()
    """The token's text has not been asked for."""
    UNREADABLE = auto()
    """The token's text fits no label: it is spelled otherwise in a context than alone."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A part of the distribution; together they are all of it."""

    kind: Kind
    path: Path
    mass: float
    """Its probability."""
    labels: tuple[str, ...]
    """Those that it can belong to: of kind LABEL, exactly one."""


@dataclass(slots=True)
class Facts:
    """All that servers have told: every figure is computed from these."""

    steps: dict[Path, Step] = field(default_factory=dict)
    texts: dict[Path, str] = field(default_factory=lambda: {(): ""})
    """Each path's text. It ends in U+FFFD where its last character is not complete."""
    hopeless: set[tuple[Kind, Path]] = field(default_factory=set)
    """What asking again would not resolve."""


def leaves(labels: LabelSet, facts: Facts) -> Iterator[Leaf]:
    """The distribution in parts, as far as it is known. Their masses sum to 1, but for rounding."""
    nodes: list[tuple[Path, float, tuple[str, ...]]] = [((), 1.0, labels.texts)]
    while nodes:
        path, mass, among = nodes.pop()
        step = facts.steps.get(path)
        if len(among) == 1:
            yield Leaf(Kind.LABEL, path, mass, among)
        elif step is None:
            yield Leaf(Kind.NODE, path, mass, among)
        else:
            if step.hidden:
                yield Leaf(Kind.HIDDEN, path, mass * step.hidden, among)
            for leaf in _children(labels, facts, path, among):
                below = mass * math.exp(step.logprobs[leaf.path[-1]])
                if leaf.kind is Kind.NODE:
                    nodes.append((leaf.path, below, leaf.labels))
                else:
                    yield Leaf(leaf.kind, leaf.path, below, leaf.labels)


def _children(labels: LabelSet, facts: Facts, path: Path, among: tuple[str, ...]) -> Iterator[Leaf]:
    """The tokens after a node that several labels can continue, each with what it can become."""
    before = facts.texts[path]
    for token in facts.steps[path].logprobs:
        child = (*path, token)
        text = facts.texts.get(child)
        if text is None:
            yield Leaf(Kind.UNSPELLED, child, 1.0, among)
        elif text != before and (found := labels.starting_with(text, among)):
            yield Leaf(Kind.NODE, child, 1.0, found)
        elif before in among:
            # Under the mask, a token after a whole label that continues no other is the end of the answer.
            yield Leaf(Kind.LABEL, child, 1.0, (before,))
        elif _grew_inside_a_character(before, text) and (found := labels.starting_with(text, among)):
            yield Leaf(Kind.NODE, child, 1.0, found)
        else:
            yield Leaf(Kind.UNREADABLE, child, 1.0, among)


def _grew_inside_a_character(before: str, text: str) -> bool:
    """Two of a character's three bytes look like one of them."""
    return text == before and text.endswith(INCOMPLETE)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The distribution as far as it is known."""

    probabilities: Mapping[str, float]
    bounds: Mapping[str, tuple[float, float]]
    coverage: float


def estimate(labels: LabelSet, parts: list[Leaf]) -> Estimate:
    """Each label's own mass, and of the unresolved its share: in proportion to what its rivals there have."""
    whole = math.fsum(part.mass for part in parts)
    own = dict.fromkeys(labels.texts, 0.0)
    for part in parts:
        if part.kind is Kind.LABEL:
            own[part.labels[0]] += part.mass / whole
    shared, most = dict(own), dict(own)
    for part in parts:
        if part.kind is not Kind.LABEL:
            for label, share in _shares(own, part.labels).items():
                shared[label] += share * part.mass / whole
                most[label] += part.mass / whole
    total = math.fsum(shared.values())
    return Estimate(
        {label: mass / total for label, mass in shared.items()},
        {label: (own[label], min(1.0, most[label])) for label in labels.texts},
        min(1.0, math.fsum(own.values())),
    )


def _shares(own: Mapping[str, float], among: tuple[str, ...]) -> dict[str, float]:
    known = math.fsum(own[label] for label in among)
    if known == 0:
        return dict.fromkeys(among, 1 / len(among))
    return {label: own[label] / known for label in among}

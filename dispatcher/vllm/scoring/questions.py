"""What to ask next about a masked distribution, and what the answer tells. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dispatcher.vllm.scoring.labels import INCOMPLETE, LabelSet
from dispatcher.vllm.scoring.masked import Facts, Kind, Leaf, Path, Step

BIASED_MAX: Final = 3
"""The bytes that a character of four can have behind its first."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One generated token with the likeliest allowed ones at its place."""

    chosen: int
    logprobs: dict[int, float]
    """Those that the mask allows, in nats."""
    complete: bool
    """Whether they are all that it allows."""


@dataclass(frozen=True, slots=True)
class Question:
    """A constrained generation from a node on."""

    leaf: Leaf
    """What it is to resolve."""
    at: Path
    """The tokens that stand after the prompt already."""
    choice: tuple[str, ...]
    """What may follow them. Empty text: the answer may end there."""
    forced: Path = ()
    """Tokens to be generated first. The last node whose text is whole characters is before them."""
    anchor: int | None = None
    """Of a listing: a token that is allowed in it and in the whole, so that both can be compared."""


def root_question(labels: LabelSet) -> Question:
    """The one that every classification begins with."""
    return Question(Leaf(Kind.NODE, (), 1.0, labels.texts), (), labels.texts)


def next_question(labels: LabelSet, facts: Facts, parts: Iterable[Leaf]) -> Question | None:
    """The question about the largest part that can be resolved; None where none can."""
    for leaf in sorted(parts, key=lambda part: part.mass, reverse=True):
        if leaf.mass == 0 or (leaf.kind, leaf.path) in facts.hopeless:
            continue
        question: Question | None = None
        if leaf.kind is Kind.NODE:
            question = _about_node(facts, leaf)
        elif leaf.kind is Kind.HIDDEN:
            question = _about_hidden(labels, facts, leaf)
        if question is not None:
            return question
    return None


def _about_node(facts: Facts, leaf: Leaf) -> Question | None:
    whole = next(
        size
        for size in range(len(leaf.path), -1, -1)
        if not facts.texts[leaf.path[:size]].endswith(INCOMPLETE)
    )
    at, forced = leaf.path[:whole], leaf.path[whole:]
    if len(forced) > BIASED_MAX:
        return None
    return Question(leaf, at, _rests(facts.texts[at], leaf.labels), forced)


def _about_hidden(labels: LabelSet, facts: Facts, leaf: Leaf) -> Question | None:
    """List the tokens of a group of labels, beside a known token that tells how the two masks compare."""
    text = facts.texts[leaf.path]
    anchor = _anchor(labels, facts, leaf)
    if text.endswith(INCOMPLETE) or anchor is None:
        return None
    step = facts.steps[leaf.path]
    if not step.groups:
        step.groups.extend(_halves(leaf.labels))
    token, label = anchor
    group = step.groups[-1]
    return Question(leaf, leaf.path, _rests(text, dict.fromkeys((*group, label))), anchor=token)


def _anchor(labels: LabelSet, facts: Facts, leaf: Leaf) -> tuple[int, str] | None:
    """The likeliest known token that begins a label, with that label.

    Being listed, it is likelier than all hidden ones, so it is listed again.
    """
    step = facts.steps[leaf.path]
    for token, _ in sorted(step.logprobs.items(), key=lambda item: item[1], reverse=True):
        text = facts.texts[(*leaf.path, token)]
        found = labels.starting_with(text, leaf.labels)
        if found and not text.endswith(INCOMPLETE) and text != facts.texts[leaf.path]:
            return token, found[0]
    return None


def _rests(text: str, among: Iterable[str]) -> tuple[str, ...]:
    return tuple(label[len(text) :] for label in among if label.startswith(text))


def _halves(among: Sequence[str]) -> list[tuple[str, ...]]:
    """Sorted first: labels that begin alike share tokens."""
    ranked = sorted(among)
    middle = len(ranked) // 2
    return [tuple(half) for half in (ranked[:middle], ranked[middle:]) if half]


def observe(facts: Facts, question: Question, answer: Sequence[Listed]) -> None:
    """Take in what a question's answer tells."""
    if question.anchor is not None:
        _observe_listing(facts, question, question.anchor, answer)
        return
    chosen = tuple(listed.chosen for listed in answer)
    for position, listed in enumerate(answer):
        path = question.at + chosen[:position]
        # Of two tellings the first stays: servers round differently from call to call.
        facts.steps.setdefault(path, Step(listed.logprobs, listed.complete))
    if question.leaf.path not in facts.steps:
        facts.hopeless.add((Kind.NODE, question.leaf.path))


def _observe_listing(facts: Facts, question: Question, anchor: int, answer: Sequence[Listed]) -> None:
    step = facts.steps[question.at]
    listed = answer[0] if answer else None
    if listed is None or anchor not in listed.logprobs:
        facts.hopeless.add((Kind.HIDDEN, question.at))
        return
    scale = step.logprobs[anchor] - listed.logprobs[anchor]
    for token, logprob in listed.logprobs.items():
        step.logprobs.setdefault(token, logprob + scale)
    group = step.groups.pop()
    if not listed.complete:
        if len(group) == 1:
            facts.hopeless.add((Kind.HIDDEN, question.at))
        step.groups.extend(_halves(group))
    step.complete = not step.groups

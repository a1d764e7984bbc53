"""Classifying by one constrained generation, and as many more as the unresolved is worth."""

from dataclasses import dataclass, field
from typing import Final

from dispatcher.errors import ConstraintIgnoredError
from dispatcher.vllm.scoring.labels import LabelSet
from dispatcher.vllm.scoring.masked import Facts, Kind, Leaf, Path, estimate, leaves
from dispatcher.vllm.scoring.prompts import Prompt, tokenize
from dispatcher.vllm.scoring.questions import Question, next_question, observe, root_question
from dispatcher.vllm.scoring.records import Classification, Method, ScoringError
from dispatcher.vllm.scoring.spelling import Spellings
from dispatcher.vllm.scoring.wire import (
    CHAT,
    COMPLETIONS,
    Wire,
    first_body,
    question_body,
    read_chat,
    read_completion,
)

CALLS_MAX: Final = 1000
"""Calls of one classification, where `max_calls` is None."""
ROUNDING: Final = 1e-6
"""What a server's float32 log-probabilities leave of 1."""


@dataclass(slots=True)
class _Asking:
    wire: Wire
    prompt: Prompt
    labels: LabelSet
    method: Method
    spellings: Spellings
    facts: Facts = field(default_factory=Facts)
    before: Path = ()
    """The prompt's tokens, once they are needed."""


async def classify_in_one_call(
    wire: Wire, prompt: Prompt, labels: LabelSet, method: Method, spellings: Spellings
) -> Classification:
    """Generate one label under the constraint; the mass of the others is that of the tokens not taken."""
    asking = _Asking(wire, prompt, labels, method, spellings)
    await _ask_first(asking)
    parts, calls = await _spelled(asking), 1
    most = min(CALLS_MAX, CALLS_MAX if method.max_calls is None else method.max_calls)
    while prompt.is_text and calls < most and _unresolved(parts) > method.unresolved_max:
        question = next_question(labels, asking.facts, parts)
        if question is None:
            break
        await _ask(asking, question)
        calls += 1
        parts = await _spelled(asking)
    found = estimate(labels, parts)
    return Classification(
        label=max(found.probabilities, key=found.probabilities.__getitem__),
        probabilities=found.probabilities,
        bounds=found.bounds,
        mode="one_call",
        coverage=found.coverage,
        approximate=found.coverage < 1 - ROUNDING,
        calls=calls,
    )


def _unresolved(parts: list[Leaf]) -> float:
    return sum(part.mass for part in parts if part.kind is not Kind.LABEL)


async def _ask_first(asking: _Asking) -> None:
    question = root_question(asking.labels)
    listed_max = asking.method.listed_max
    body = {**asking.prompt.asked(), **first_body(question.choice, listed_max)}
    text, thoughts, listed = read_chat(await asking.wire.post(CHAT, body), listed_max)
    if text.strip() not in {label.strip() for label in asking.labels.texts}:
        raise _no_label(thoughts)
    if not listed:
        raise ScoringError("the server gives no log-probabilities of its answers")
    observe(asking.facts, question, listed)


def _no_label(thoughts: str | None) -> Exception:
    if thoughts is not None:
        return ScoringError(
            "the model thinks before it answers, which leaves no one distribution over labels; switch that "
            'off, in many models with chat_template_kwargs={"enable_thinking": False}'
        )
    return ConstraintIgnoredError(
        "the server has answered with none of the labels: it ignores the constraint"
    )


async def _ask(asking: _Asking, question: Question) -> None:
    if not asking.before:
        asking.before = await tokenize(asking.wire, asking.prompt.asked())
    listed_max = asking.method.listed_max
    answer = await asking.wire.post(COMPLETIONS, question_body(asking.before, question, listed_max))
    observe(asking.facts, question, read_completion(answer, listed_max))


async def _spelled(asking: _Asking) -> list[Leaf]:
    """The distribution in parts, after all texts have been asked for that decide it.

    Each round goes one token deeper, so it ends with the tokens that were seen.
    """
    while True:
        parts = list(leaves(asking.labels, asking.facts))
        unspelled = [part.path for part in parts if part.kind is Kind.UNSPELLED]
        if not unspelled:
            return parts
        asking.facts.texts.update(await asking.spellings.of(asking.wire, unspelled))

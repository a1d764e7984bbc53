"""Classifying by one constrained generation, and as many more as the unresolved is worth."""

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dispatcher.errors import ConstraintIgnoredError
from dispatcher.vllm.scoring.labels import LabelSet
from dispatcher.vllm.scoring.masked import Facts, Kind, Leaf, Path, estimate, leaves
from dispatcher.vllm.scoring.prompts import Prompt
from dispatcher.vllm.scoring.questions import Question, next_question, observe, root_question
from dispatcher.vllm.scoring.records import Classification, Method, ScoringError
from dispatcher.vllm.scoring.spelling import UNREADABLE, Spellings
from dispatcher.vllm.scoring.steps import Answer, Ask, Post, Steps
from dispatcher.vllm.scoring.wire import (
    CHAT,
    COMPLETIONS,
    TOKENIZE,
    Wire,
    first_body,
    question_body,
    read_chat,
    read_completion,
    read_tokens,
)

CALLS_MAX: Final = 1000
"""Calls of one classification, where `max_calls` is None."""
ROUNDING: Final = 1e-6
"""What a server's float32 log-probabilities leave of 1."""
FOREIGN_MAX: Final = 0.01
"""Share of first tokens that begin no label. A mask allows none: a server that allows more has no mask."""
POSTED_MAX: Final = 16
"""Posts of one classification at a time."""


async def classify_in_one_call(
    wire: Wire, prompt: Prompt, labels: LabelSet, method: Method, spellings: Spellings
) -> Classification:
    """Generate one label under the constraint; the mass of the others is that of the tokens not taken."""
    steps = distribution(prompt, labels, method, spellings)
    ask = next(steps)
    while True:
        answers = await _posted(wire, ask.posts)
        try:
            ask = steps.send(answers)
        except StopIteration as end:
            found: Classification = end.value
            return found


def distribution(prompt: Prompt, labels: LabelSet, method: Method, spellings: Spellings) -> Steps:
    """The same for whoever does the posting. What is posted first is a chat that asks for a label."""
    asking = _Asking(prompt, labels, method, spellings)
    yield from asking.ask_first()
    most = min(CALLS_MAX, CALLS_MAX if method.max_calls is None else method.max_calls)
    while prompt.is_text and asking.calls < most and asking.unresolved > method.unresolved_max:
        question = next_question(labels, asking.facts, asking.parts)
        if question is None:
            break
        yield from asking.ask(question)
    return asking.found()


_Asked = Generator[Ask, Sequence[Answer], None]


@dataclass(slots=True)
class _Asking:
    prompt: Prompt
    labels: LabelSet
    method: Method
    spellings: Spellings
    facts: Facts = field(default_factory=Facts)
    parts: list[Leaf] = field(default_factory=list)
    """The distribution, as far as the facts tell it."""
    before: Path = ()
    """The prompt's tokens, once they are needed."""
    calls: int = 0

    @property
    def unresolved(self) -> float:
        return sum(part.mass for part in self.parts if part.kind is not Kind.LABEL)

    def found(self) -> Classification:
        found = estimate(self.labels, self.parts)
        return Classification(
            label=max(found.probabilities, key=found.probabilities.__getitem__),
            probabilities=found.probabilities,
            bounds=found.bounds,
            mode="one_call",
            coverage=found.coverage,
            approximate=found.coverage < 1 - ROUNDING,
            calls=self.calls,
        )

    def ask_first(self) -> _Asked:
        question, listed_max = root_question(self.labels), self.method.listed_max
        body = {**self.prompt.asked(), **first_body(question.choice, listed_max)}
        ((_, answer),) = yield Ask([Post(CHAT, body)], None)
        text, thoughts, listed = read_chat(answer, listed_max)
        if text.strip() not in {label.strip() for label in self.labels.texts}:
            raise _no_label(thoughts)
        if not listed:
            raise ScoringError("the server gives no log-probabilities of its answers")
        observe(self.facts, question, listed)
        self.calls = 1
        yield from self._spell(None)
        if self._foreign() > FOREIGN_MAX:
            raise ConstraintIgnoredError("the server allows what begins no label: it ignores the constraint")

    def ask(self, question: Question) -> _Asked:
        if not self.before:
            ((_, answer),) = yield Ask([Post(TOKENIZE, self.prompt.asked())], self.found)
            self.before = read_tokens(answer)
        listed_max = self.method.listed_max
        post = Post(COMPLETIONS, question_body(self.before, question, listed_max))
        ((_, answer),) = yield Ask([post], self.found)
        observe(self.facts, question, read_completion(answer, listed_max))
        self.calls += 1
        yield from self._spell(self.found)

    def _spell(self, so_far: Callable[[], Classification] | None) -> _Asked:
        """See the distribution in parts, after all texts have been asked for that decide it.

        Each round goes one token deeper, so it ends with the tokens that were seen.
        """
        while True:
            self.parts = list(leaves(self.labels, self.facts))
            unspelled = [part.path for part in self.parts if part.kind is Kind.UNSPELLED]
            if not unspelled:
                return
            self.facts.texts.update((yield from self.spellings.of(unspelled, so_far)))

    def _foreign(self) -> float:
        """The share of first tokens whose text no label begins with."""
        return sum(
            part.mass
            for part in self.parts
            if part.kind is Kind.UNREADABLE
            and len(part.path) == 1
            and not self.facts.texts[part.path].startswith(UNREADABLE)
        )


def _no_label(thoughts: str | None) -> Exception:
    if thoughts is not None:
        return ScoringError(
            "the model thinks before it answers, which leaves no one distribution over labels; switch that "
            'off, in many models with chat_template_kwargs={"enable_thinking": False}'
        )
    return ConstraintIgnoredError(
        "the server has answered with none of the labels: it ignores the constraint"
    )


async def _posted(wire: Wire, posts: Sequence[Post]) -> list[Answer]:
    turns = asyncio.Semaphore(POSTED_MAX)

    async def answer(post: Post) -> tuple[Post, Mapping[str, Any]]:
        async with turns:
            return post, await wire.post(post.path, post.body)

    return list(await asyncio.gather(*(answer(post) for post in posts)))

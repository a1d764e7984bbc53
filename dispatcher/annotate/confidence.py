"""Labels with the probability of each: the answer, and what is asked to find it out.

The distribution is that of the client's `classify(mode="one_call")` (docs/scoring.md): of one constrained
answer and, where several labels begin alike, of further questions. Each is a request of the row's own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import pyarrow as pa

from dispatcher.annotate.answers import UnusableAnswerError
from dispatcher.annotate.review import refuse, revised
from dispatcher.annotate.wording import worded
from dispatcher.errors import ConstraintIgnoredError, DispatcherError
from dispatcher.model import Judgement, Request
from dispatcher.ports import Asked, Counted, Unfinished, Unusable
from dispatcher.vllm.scoring import Classification, Method, Prompt, ScoringError, Spellings
from dispatcher.vllm.scoring.labels import LabelSet
from dispatcher.vllm.scoring.one_call import distribution
from dispatcher.vllm.scoring.steps import Answer, Ask, Post, Steps
from dispatcher.vllm.scoring.wire import LISTED_MAX, first_body

MODELS_MAX: Final = 64
"""Models whose tokens are remembered at a time."""
TEMPLATE: Final[tuple[str, ...]] = (
    *("chat_template", "chat_template_kwargs", "tools", "mm_processor_kwargs"),
    *("add_generation_prompt", "continue_final_message", "add_special_tokens"),
)
"""Members of a chat's body that change the prompt, and that `/tokenize` takes as well (vLLM 0.32.0)."""
UNTOLD: Final = frozenset({"reasoning_effort", "documents", "truncate_prompt_tokens"})
"""Those that it does not take: the prompt's tokens cannot be had, and the one answer has to do."""
SUM_OFF_MAX: Final = 1e-6
"""What is lost of a sum of 1 in writing it down."""


class LabelWithConfidence:
    """One of a few texts, with the probability of each. An `AnswerKind`.

    What it reads is no server's answer but what `ConfidenceReview` counts in its place.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = tuple(labels)
        self.columns = (
            pa.field("", pa.string()),
            pa.field("probabilities", pa.struct([pa.field(label, pa.float64()) for label in labels])),
            pa.field("confidence", pa.float64()),
            pa.field("coverage", pa.float64()),
            pa.field("approximate", pa.bool_()),
        )
        self.constraint: Mapping[str, Any] = first_body(labels, LISTED_MAX)

    def read(self, content: str, *, cut: bool) -> dict[str, Any]:  # noqa: ARG002  # it was counted whole
        """See AnswerKind."""
        found = _FOUND.decode(content)
        return {
            "": found.label,
            "probabilities": found.probabilities,
            "confidence": found.probabilities[found.label],
            "coverage": found.coverage,
            "approximate": found.approximate,
        }

    def fault(self, values: Mapping[str, Any]) -> str | None:
        """See AnswerKind."""
        label, probabilities = values[""], values["probabilities"]
        if label not in self._labels:
            return f"not one of the labels: {label!r:.80}"
        if not isinstance(probabilities, Mapping) or set(probabilities) != set(self._labels):
            return "no probability of each label"
        shares = [probabilities[each] for each in self._labels]
        if not all(isinstance(share, float | int) and 0 <= share <= 1 for share in shares):
            return "a probability that is none"
        if abs(math.fsum(shares) - 1) > SUM_OFF_MAX:
            return "the probabilities do not sum to 1"
        if probabilities[label] != max(shares) or values["confidence"] != probabilities[label]:
            return "the answer is not the likeliest label, or its confidence is not its probability"
        return None


class ConfidenceReview:
    """A `Review` that asks until the distribution over the labels is known well enough.

    Args:
        labels: What there is to choose from.
        method: How many calls a row may take, and when fewer will do.
        retries_max: How often a row is asked again whose answer tells no distribution.
        valid: Given each label; it raises ValueError, with what is wrong, for one that will not do.
    """

    wording = staticmethod(worded)

    def __init__(
        self,
        labels: LabelSet,
        method: Method,
        retries_max: int,
        valid: Callable[[Any], object] | None = None,
    ) -> None:
        self._labels = labels
        self._method = method
        self._retries_max = retries_max
        self._valid = valid
        self._spellings: dict[str | None, Spellings] = {}

    def __call__(
        self, request: Request, judgement: Judgement, asked: Asked
    ) -> Unusable | Unfinished | Counted:
        """See Review."""
        notes = asked.notes
        if isinstance(notes, _Notes):
            return self._go_on(request, notes, judgement)
        try:
            answer = _decoded(judgement)
            return self._next(request, self._begun(request, answer), answer)
        except ConstraintIgnoredError as error:
            again = revised(request, asked.times + 1, cut=False) if asked.times < self._retries_max else None
            return _of_no_use(error, again)
        except DispatcherError as error:  # another try would end the same way
            return _of_no_use(error, None)

    def _begun(self, request: Request, answer: Mapping[str, Any]) -> "_Notes":
        body: dict[str, Any] = msgspec.json.decode(request.body)
        prompt = Prompt(body["messages"], {name: body[name] for name in TEMPLATE if name in body})
        model = request.model or _text(answer.get("model"))
        method = self._method if UNTOLD.isdisjoint(body) else replace(self._method, max_calls=1)
        steps = distribution(prompt, self._labels, method, self._spellings_of(model))
        return _Notes(steps, next(steps), _text(answer.get("id")), model)

    def _go_on(
        self, request: Request, notes: "_Notes", judgement: Judgement
    ) -> Unusable | Unfinished | Counted:
        try:
            return self._next(request, notes, _decoded(judgement))
        except DispatcherError as error:
            if (found := notes.so_far()) is None:
                return _of_no_use(error, None)
            return self._counted(notes, found)  # what is known without this answer stands

    def _next(
        self, request: Request, notes: "_Notes", answer: Mapping[str, Any]
    ) -> Unusable | Unfinished | Counted:
        try:
            notes.ask = notes.steps.send([notes.answered(request.index, answer)])
        except StopIteration as end:
            return self._counted(notes, end.value)
        post = notes.post(request.index)
        body = {**post.body, "model": notes.model} if notes.model else post.body
        again = msgspec.structs.replace(
            request, url=post.path, model=notes.model, body=msgspec.json.encode(body)
        )
        found = notes.so_far()
        return Unfinished(again, None if found is None else notes.body(found), notes)

    def _counted(self, notes: "_Notes", found: Classification) -> Unusable | Counted:
        try:
            refuse(found.label, self._valid)
        except UnusableAnswerError as error:  # it would be the same label again
            return Unusable(f"the answer is {error}", None, error.reason)
        return Counted(notes.body(found))

    def _spellings_of(self, model: str | None) -> Spellings:
        if model not in self._spellings and len(self._spellings) >= MODELS_MAX:
            self._spellings.clear()
        return self._spellings.setdefault(model, Spellings())


@dataclass(slots=True)
class _Notes:
    """Where one row's questions stand."""

    steps: Steps
    ask: Ask
    id: str | None
    """Of the first answer."""
    model: str | None
    """What all of them are asked of: the one that gave the first answer, where none was named."""

    def post(self, index: int) -> Post:
        """The one of the posts that this row makes: other rows make others, and all learn from each."""
        return self.ask.posts[index % len(self.ask.posts)]

    def answered(self, index: int, answer: Mapping[str, Any]) -> Answer:
        return self.post(index), answer

    def so_far(self) -> Classification | None:
        """The distribution as far as it is known."""
        return None if self.ask.so_far is None else self.ask.so_far()

    def body(self, found: Classification) -> bytes:
        """A chat completion whose text is the distribution."""
        content = _Found(
            found.label, dict(found.probabilities), found.coverage, found.approximate, found.calls
        )
        message = {"role": "assistant", "content": msgspec.json.encode(content).decode()}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        whole = {"id": self.id, "object": "chat.completion", "model": self.model, "choices": [choice]}
        return msgspec.json.encode(whole)


class _Found(msgspec.Struct, frozen=True):
    label: str
    probabilities: dict[str, float]
    coverage: float
    approximate: bool
    calls: int


_FOUND: Final = msgspec.json.Decoder(_Found)


def _of_no_use(error: DispatcherError, again: Request | None) -> Unusable:
    return Unusable(f"the answer is of no use: {error}", again)


def _decoded(judgement: Judgement) -> dict[str, Any]:
    try:
        return msgspec.json.decode(judgement.body or b"{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ScoringError(f"it cannot be read: {error}") from error


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None

"""Answers looked at before they count, and asked again where they are of no use. Pure."""

from collections.abc import Callable
from typing import Any

import msgspec

from dispatcher.annotate.answers import AnswerKind, UnusableAnswerError, read_body
from dispatcher.annotate.wording import worded
from dispatcher.model import AgainReason, Judgement, Request
from dispatcher.ports import Asked, Unusable

WARMER = 0.3
"""What a temperature of 0 grows by with each time a row is asked again: a seed would change nothing there."""
HOTTEST = 2.0
"""vLLM refuses a temperature above (`SamplingParams._verify_args`, 0.32.0)."""


class AnswerReview:
    """A `Review`.

    Args:
        kind: What answers are held to.
        retries_max: How often one row is asked again.
        valid: Given each answer that is valid so far, a text or the values by name; it raises ValueError,
            with what is wrong, for one that will not do.
    """

    def __init__(
        self, kind: AnswerKind, retries_max: int, valid: Callable[[Any], object] | None = None
    ) -> None:
        self._valid = valid
        self._kind = kind
        self._retries_max = retries_max

    wording = staticmethod(worded)

    def __call__(self, request: Request, judgement: Judgement, asked: Asked) -> Unusable | None:
        """See Review."""
        cut = False
        try:
            reading = read_body(judgement.body or b"")
            cut = reading.finish_reason == "length"
            answer = self._kind.read(reading.content, cut=cut)
            refuse(answer.get("", answer), self._valid)
        except UnusableAnswerError as error:
            again = None
            if asked.times < self._retries_max:
                room = room_for_answer(judgement, asked) if cut else None
                again = revised(request, asked.times + 1, cut=cut, room=room)
            return Unusable(f"the answer is {error}", again, error.reason)
        return None


def refuse(answer: Any, valid: Callable[[Any], object] | None) -> None:
    """Raises UnusableAnswerError where the caller's own check does not want the answer."""
    if valid is None:
        return
    try:
        valid(answer)
    except ValueError as error:
        raise UnusableAnswerError(f"refused: {error}", AgainReason.REFUSED) from error


def room_for_answer(judgement: Judgement, asked: Asked) -> int | None:
    """Tokens that the model's context has for an answer to the prompt; None where that is not known."""
    if asked.context_tokens is None:
        return None
    return max(1, asked.context_tokens - judgement.tokens.prompt)


def revised(request: Request, asked: int, *, cut: bool, room: int | None = None) -> Request:
    """The request to send instead, `asked` times asked again: another seed, and more tokens for what was cut.

    `max_tokens` grows to at most `room`: vLLM refuses what its context has no room for. (0.32.0 refuses only
    what no prompt at all would leave room for, and cuts down the rest; older ones count the prompt as well.)
    """
    body: dict[str, Any] = msgspec.json.decode(request.body)
    body["seed"] = body.get("seed", 0) + 1
    if body.get("temperature", 1) <= round(WARMER * (asked - 1), 1):
        body["temperature"] = min(HOTTEST, round(WARMER * asked, 1))
    if cut and "max_tokens" in body:
        wanted = body["max_tokens"] * 2
        body["max_tokens"] = wanted if room is None else max(body["max_tokens"], min(wanted, room))
    return msgspec.structs.replace(request, body=msgspec.json.encode(body))

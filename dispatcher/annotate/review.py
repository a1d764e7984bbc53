"""Answers looked at before they count, and asked again where they are of no use. Pure."""

from collections.abc import Callable
from typing import Any

import msgspec

from dispatcher.annotate.answers import AnswerKind, UnusableAnswerError, read_body
from dispatcher.model import Judgement, Request
from dispatcher.ports import Unusable

WARMER = 0.3
"""What a temperature of 0 grows by with each time a row is asked again: a seed would change nothing there."""


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

    def __call__(self, request: Request, judgement: Judgement, asked: int) -> Unusable | None:
        """See Review."""
        cut = False
        try:
            reading = read_body(judgement.body or b"")
            cut = reading.finish_reason == "length"
            self._check(self._kind.read(reading.content, cut=cut))
        except UnusableAnswerError as error:
            again = revised(request, asked + 1, cut=cut) if asked < self._retries_max else None
            return Unusable(f"the answer is {error}", again)
        return None

    def _check(self, answer: dict[str, Any]) -> None:
        if self._valid is None:
            return
        try:
            self._valid(answer.get("", answer))
        except ValueError as error:
            raise UnusableAnswerError(f"refused: {error}") from error


def revised(request: Request, asked: int, *, cut: bool) -> Request:
    """The request to send instead, `asked` times asked again: another seed, and room for what was cut.

    A server cuts `max_tokens` down to what its context has room for, and refuses only what no prompt at all
    would leave room for (vLLM 0.32.0).
    """
    body: dict[str, Any] = msgspec.json.decode(request.body)
    body["seed"] = body.get("seed", 0) + 1
    if body.get("temperature", 1) <= WARMER * (asked - 1):
        body["temperature"] = round(WARMER * asked, 1)
    if cut and "max_tokens" in body:
        body["max_tokens"] *= 2
    return msgspec.structs.replace(request, body=msgspec.json.encode(body))

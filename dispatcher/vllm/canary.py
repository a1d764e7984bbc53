"""The canary: a question that costs one token, and what its end says of the server. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from dispatcher.model import (
    Answer,
    CanaryFault,
    CanaryReport,
    Ending,
    ErrorCode,
    Judgement,
    Request,
    Verdict,
)
from dispatcher.vllm.complaints import read_complaint
from dispatcher.vllm.verdicts import judge


@dataclass(frozen=True, slots=True)
class Canary:
    """A question that any model with this route can answer at once."""

    route: str
    fields: dict[str, object]
    generates: bool = False
    """Whether the models with this route write text."""

    def request(self, model: str | None) -> Request:
        """Make the request; without a model's name the server takes its own."""
        fields = self.fields if model is None else {"model": model, **self.fields}
        return Request(0, "canary", self.route, model, msgspec.json.encode(fields))


CANARIES: Final = (
    # Plain completion needs no chat template, and every vLLM that generates has it.
    Canary("/v1/completions", {"prompt": "1", "max_tokens": 1, "temperature": 0}, generates=True),
    Canary(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "1"}], "max_tokens": 1, "temperature": 0},
        generates=True,
    ),
    Canary("/v1/embeddings", {"input": "1"}),
    Canary("/pooling", {"input": "1"}),
)
"""In the order in which they are tried: models that pool have no completions, and generators no pooling."""


def report_on(ending: Ending, request: Request) -> CanaryReport | None:
    """Tell what a canary's end says of the server, or None where another route is to be asked.

    That is for a 4xx or 501 which is not about key or model: the route is not there, or not for this model,
    and the engine has not been reached.
    """
    judgement = judge(ending, request, {})
    if judgement.verdict is Verdict.SUCCESS:
        return CanaryReport()
    fault = _fault_of(judgement)
    if fault is CanaryFault.FAILED and _is_about_the_route(ending):
        return None
    return CanaryReport(fault, judgement.message)


def report_on_no_route(endings: Sequence[Ending]) -> CanaryReport:
    """Tell what it means that a server has none of the canaries' routes.

    It is alive, unless every route was answered by a 404 that is no API's own: then it is a proxy with no
    inference server behind it, and each row that it is given would be charged for that.
    """
    pages = [each for each in endings if isinstance(each, Answer) and each.status == 404]  # noqa: PLR2004 - HTTP
    if len(pages) == len(endings) and not any(read_complaint(page.body).structured for page in pages):
        return CanaryReport(CanaryFault.MISMATCHED, "404 for every route, in no API's words: a proxy's page")
    return CanaryReport()


def _fault_of(judgement: Judgement) -> CanaryFault:
    match judgement.verdict:
        case Verdict.OVERLOAD:
            return CanaryFault.BUSY
        case Verdict.LOCAL_FAULT:
            return CanaryFault.UNASKED
        case Verdict.MISMATCH:
            return CanaryFault.MISMATCHED
        case Verdict.SERVER_FAULT if judgement.hard:
            return CanaryFault.DEAD
        case _:
            return CanaryFault.SLOW if judgement.code is ErrorCode.TIMEOUT else CanaryFault.FAILED


def _is_about_the_route(ending: Ending) -> bool:
    return isinstance(ending, Answer) and (ending.status // 100 == 4 or ending.status == 501)  # noqa: PLR2004 - HTTP

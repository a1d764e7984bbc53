"""A question whose answer is known, and what a server's answer to it says of its weights. Pure."""

from typing import Final

import msgspec

from dispatcher.config import KnownAnswer
from dispatcher.model import CanaryFault, CanaryReport, Ending, Request, Verdict
from dispatcher.vllm.canary import report_on
from dispatcher.vllm.verdicts import judge

ROUTE: Final = "/v1/chat/completions"
SHOWN_CHARACTERS_MAX: Final = 80
"""Of an answer, for the operator to read."""


def question_of(known: KnownAnswer, model: str | None) -> Request:
    """Make the request; without a model's name the server takes its own."""
    fields: dict[str, object] = {} if model is None else {"model": model}
    messages = [message.model_dump() for message in known.messages]
    fields |= {"messages": messages, "max_tokens": known.max_tokens, "temperature": 0}
    return Request(0, "canary", ROUTE, model, msgspec.json.encode(fields))


def report_on_answer(ending: Ending, request: Request, known: KnownAnswer) -> CanaryReport | None:
    """Tell what the end of the question says of the server, or None where it does not take such questions."""
    judgement = judge(ending, request, {})
    if judgement.verdict is not Verdict.SUCCESS:
        return report_on(ending, request)
    assert judgement.body is not None, "every success has its answer"
    texts = texts_of(judgement.body)
    if any(_plain(known.expect) in _plain(text) for text in texts):
        return CanaryReport()
    return CanaryReport(
        CanaryFault.WRONG, f"answered {_shown(texts)}, where {_shown([known.expect])} was to be heard"
    )


def report_on_refusal(ending: Ending, request: Request) -> CanaryReport:
    """Tell what it means that a server which writes text refuses the question: it cannot be trusted."""
    message = judge(ending, request, {}).message
    return CanaryReport(CanaryFault.MISMATCHED, f"refuses the known question: {message}")


def texts_of(body: bytes) -> list[str]:
    """All that the model wrote, the answer first, then its thoughts.

    vLLM calls them `reasoning`, older versions `reasoning_content`.
    """
    try:
        message = _ANSWER.decode(body).choices[0].message
    except msgspec.ValidationError:
        return []
    return [text for text in (message.content, message.reasoning, message.reasoning_content) if text]


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Answer(msgspec.Struct):
    choices: list[_Choice]


_ANSWER: Final = msgspec.json.Decoder(_Answer)


def _plain(text: str) -> str:
    """Without what varies between builds and kernels, and says nothing of the weights."""
    return " ".join(text.casefold().split())


def _shown(texts: list[str]) -> str:
    """The first text, cut, with everything escaped that a terminal would act on."""
    if not texts:
        return "without any text"
    text = texts[0]
    return repr(text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}...")

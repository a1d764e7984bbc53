"""The known answer: what is asked, and what an answer says of a server."""

import json

import pytest

from dispatcher.config import KnownAnswer
from dispatcher.model import Answer, Break, BreakKind, CanaryFault, CanaryReport
from dispatcher.vllm.known_answer import question_of, report_on_answer, report_on_refusal, texts_of

KNOWN = KnownAnswer.model_validate(
    {
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2+2?"}],
        "expect": "It is  four",
    }
)


def chat(content=None, finish_reason="stop", **message):
    choice = {"index": 0, "message": {"content": content, **message}, "finish_reason": finish_reason}
    return Answer(200, json.dumps({"choices": [choice], "model": "m"}).encode())


def report(ending):
    return report_on_answer(ending, question_of(KNOWN, "m"), KNOWN)


def test_the_question_is_greedy_short_and_for_this_model():
    request = question_of(KNOWN, "m")
    assert request.url == "/v1/chat/completions"
    assert json.loads(request.body) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2+2?"}],
        "max_tokens": 64,
        "temperature": 0,
    }
    assert "model" not in json.loads(question_of(KNOWN, None).body)


@pytest.mark.parametrize(
    "answer",
    [
        chat("It is four"),
        chat("Well: it\n IS\tfour."),
        chat("it is four, and so on", finish_reason="length"),
        chat(None, finish_reason="length", reasoning="Hm, it is four."),
        chat("4", reasoning_content="It is four, so I say 4."),
    ],
)
def test_an_answer_that_holds_what_is_expected_passes(answer):
    assert report(answer) == CanaryReport()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (chat("It is five"), "'It is five'"),
        (chat("It is", reasoning="four"), "'It is'"),
        (chat("!" * 500), repr("!" * 80 + "...")),
        (chat("\x1b[31mred\n"), r"'\x1b[31mred\n'"),
        (chat(""), "without any text"),
        (chat(None, tool_calls=[]), "without any text"),
        (chat([{"type": "text", "text": "It is four"}]), "without any text"),
    ],
)
def test_another_answer_is_wrong_and_shown_short_and_harmless(answer, said):
    assert report(answer) == CanaryReport(
        CanaryFault.WRONG, f"answered {said}, where 'It is  four' was to be heard"
    )


@pytest.mark.parametrize(
    ("ending", "fault"),
    [
        (Answer(429, b""), CanaryFault.BUSY),
        (Answer(503, b'{"error":{"message":"full","type":"QueueOverflowError"}}'), CanaryFault.BUSY),
        (Answer(504, b""), CanaryFault.SLOW),
        (Break(BreakKind.TIMED_OUT), CanaryFault.SLOW),
        (Break(BreakKind.RESET), CanaryFault.FAILED),
        (Break(BreakKind.REFUSED), CanaryFault.DEAD),
        (Break(BreakKind.LOCAL), CanaryFault.UNASKED),
        (Break(BreakKind.OFFLINE), CanaryFault.UNASKED),
        (Break(BreakKind.AWAY), CanaryFault.UNASKED),
        (Answer(401, b""), CanaryFault.MISMATCHED),
        (chat("It is four", finish_reason="abort"), CanaryFault.FAILED),
        (Answer(200, b"{}"), CanaryFault.FAILED),
        (Answer(500, b""), CanaryFault.FAILED),
    ],
)
def test_what_is_no_answer_is_never_a_wrong_one(ending, fault):
    assert report(ending).fault is fault


def test_an_answer_by_another_model_is_a_mismatch():
    other = Answer(200, chat("It is four").body.replace(b'"m"', b'"other"'))
    assert report(other).fault is CanaryFault.MISMATCHED


@pytest.mark.parametrize("status", [400, 404, 405, 501])
def test_a_server_that_takes_no_such_question_is_asked_otherwise(status):
    assert (
        report(Answer(status, b'{"error":{"message":"no chat template","type":"BadRequestError"}}')) is None
    )


def test_a_refusal_is_told_in_the_server_s_words():
    refusal = Answer(400, b'{"error":{"message":"no chat template","type":"BadRequestError"}}')
    assert report_on_refusal(refusal, question_of(KNOWN, "m")) == CanaryReport(
        CanaryFault.MISMATCHED, "refuses the known question: no chat template"
    )


def test_the_answer_comes_before_the_thoughts():
    assert texts_of(chat("a", reasoning="b", reasoning_content="c").body) == ["a", "b", "c"]

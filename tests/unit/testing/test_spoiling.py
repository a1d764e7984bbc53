import json
import math

import pytest

from dispatcher.testing.answers import ANSWERS
from dispatcher.testing.faults import Spoilage
from dispatcher.testing.replies import Asked
from dispatcher.testing.settings import FakeServerSettings
from dispatcher.testing.spoiling import OTHER_MODEL, spoil

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi there", "logprobs": 1, "echo": True},
    "/v1/embeddings": {"input": "hi"},
    "/score": {"text_1": "a", "text_2": "b"},
}


def reply(route, **more):
    raw = json.dumps(BODIES[route] | more).encode()
    return ANSWERS[route](Asked(FakeServerSettings(), raw, "x", 0))


@pytest.mark.parametrize("route", BODIES)
def test_a_bare_nan_comes_into_every_kind_of_answer(route):
    found = []
    json.loads(spoil(Spoilage.BARE_NAN, reply(route)).body, parse_constant=found.append)
    assert found == ["NaN"]


def test_a_bare_nan_in_a_chat_stands_in_its_logprobs():
    body = spoil(Spoilage.BARE_NAN, reply("/v1/chat/completions", logprobs=True)).body
    assert math.isnan(json.loads(body)["choices"][0]["logprobs"]["content"][0]["logprob"])


@pytest.mark.parametrize("stream", [False, True])
def test_no_finish_reason_is_left(stream):
    good = reply("/v1/chat/completions", stream=stream)
    assert b'"finish_reason":"' in good.body
    assert b'"finish_reason":"' not in spoil(Spoilage.NO_FINISH_REASON, good).body


def test_the_wrong_model_changes_the_model_and_not_the_text():
    said = 'the "model":"mine" he said'
    good = reply("/v1/completions", prompt=said)
    spoiled = json.loads(spoil(Spoilage.WRONG_MODEL, good).body)
    assert spoiled["model"] == OTHER_MODEL
    assert spoiled["choices"][0]["text"] == json.loads(good.body)["choices"][0]["text"]
    assert said in spoiled["choices"][0]["text"]


def test_garbage_is_no_json():
    with pytest.raises(ValueError, match=r"utf-8|JSON|decode"):
        json.loads(spoil(Spoilage.GARBAGE, reply("/v1/embeddings")).body)


def test_spoiled_streams_end_with_an_error_or_without_an_end():
    error = spoil(Spoilage.STREAM_ERROR, reply("/v1/chat/completions"))
    assert b'data: {"error":{' in error.body
    assert error.body.endswith(b"data: [DONE]\n\n")
    end = spoil(Spoilage.STREAM_END, reply("/v1/chat/completions"))
    assert b"[DONE]" not in end.body
    assert error.content_type == end.content_type == "text/event-stream"

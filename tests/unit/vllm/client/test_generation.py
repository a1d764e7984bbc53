"""Reading what a chat completion answers."""

import json
import math
import pickle

import pytest

from dispatcher import ConstraintIgnoredError, ErrorCode, RequestFailedError, Tokens
from dispatcher.model import ServerId, ServerSpec
from dispatcher.vllm.client.generation import TokenLogprob, ToolCall, failed, read_generation
from dispatcher.vllm.client.sender import Reply

SERVER = ServerSpec(ServerId("http://gpu1:8000"), "http://gpu1:8000")


def reply(*choices, **fields):
    body = json.dumps({"model": "m", "choices": list(choices), **fields}).encode()
    return Reply(body, Tokens(3, 2), SERVER, "x-1", 2, 0.5)


def choice(logprobs=None, finish_reason="stop", **message):
    return {"message": {"role": "assistant", **message}, "logprobs": logprobs, "finish_reason": finish_reason}


def test_a_plain_answer_has_its_text_and_where_it_came_from():
    found = read_generation(reply(choice(content="hello")))
    assert (found.text, found.reasoning, found.tool_calls, found.logprobs) == ("hello", None, (), None)
    assert (found.finish_reason, found.tokens, found.model) == ("stop", Tokens(3, 2), "m")
    assert (found.server, found.request_id, found.attempts, found.seconds) == (SERVER.id, "x-1", 2, 0.5)
    assert found.ok
    assert found.response["choices"][0]["message"]["content"] == "hello"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_found_under_both_its_names(name):
    found = read_generation(reply(choice(content=None, finish_reason="length", **{name: "hm"})))
    assert (found.text, found.reasoning, found.finish_reason) == ("", "hm", "length")


def test_tool_calls_keep_their_arguments_as_they_were_written():
    call = {"id": "call-1", "type": "function", "function": {"name": "look_up", "arguments": '{"a": 1'}}
    found = read_generation(reply(choice(content=None, finish_reason="tool_calls", tool_calls=[call])))
    assert found.tool_calls == (ToolCall("call-1", "look_up", '{"a": 1'),)


def test_logprobs_come_with_each_tokens_rivals():
    one, rival = {"token": "yes", "logprob": -0.5, "bytes": [121]}, {"token": "no", "logprob": -9999.0}
    found = read_generation(reply(choice({"content": [{**one, "top_logprobs": [one, rival]}]}, content="x")))
    rivals = (TokenLogprob("yes", -0.5), TokenLogprob("no", -9999.0))
    assert found.logprobs == (TokenLogprob("yes", -0.5, rivals),)


def test_a_logprob_that_was_not_a_number_is_nan():
    found = read_generation(reply(choice({"content": [{"token": "a", "logprob": None}]}, content="a")))
    assert math.isnan(found.logprobs[0].logprob)


@pytest.mark.parametrize(
    "choices", [[choice(content="a"), choice(content="b")], [choice(content=3)], [{"text": "a"}]]
)
def test_an_answer_of_another_form_is_an_error_that_names_its_server(choices):
    with pytest.raises(RequestFailedError) as caught:
        read_generation(reply(*choices))
    error = caught.value
    assert (error.code, error.server, error.request_id, error.attempts) == (
        ErrorCode.INVALID_RESPONSE,
        SERVER.id,
        "x-1",
        2,
    )


def test_a_failure_says_where_it_failed():
    error = RequestFailedError("no", ErrorCode.TIMEOUT, server="http://a:1", request_id="r", attempts=3)
    found = failed(error)
    assert (found.ok, found.text, found.error, found.response) == (False, "", error, None)
    assert (found.server, found.request_id, found.attempts) == ("http://a:1", "r", 3)
    assert str(error) == "timeout at http://a:1: no"
    assert str(RequestFailedError("no", ErrorCode.TIMEOUT)) == "timeout: no"
    ignored = ConstraintIgnoredError("no")
    assert failed(ignored).error is ignored


def test_answers_and_errors_can_go_to_another_process():
    answer = read_generation(reply(choice(content="hello")))
    assert pickle.loads(pickle.dumps(answer)) == answer  # noqa: S301  # our own
    error = RequestFailedError("no", ErrorCode.TIMEOUT, server="http://a:1", status=500, attempts=3)
    found = pickle.loads(pickle.dumps(failed(error)))  # noqa: S301  # our own
    assert (str(found.error), vars(found.error)) == (str(error), vars(error))

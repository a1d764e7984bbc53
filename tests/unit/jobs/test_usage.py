import json

import pytest

from dispatcher.jobs.details import TokenDetails
from dispatcher.jobs.usage import UsageReader


def line(**usage):
    return json.dumps({"response": {"status_code": 200, "body": {"choices": [], "usage": usage}}}).encode()


def read(*lines):
    reader = UsageReader()
    for each in lines:
        reader.read(each)
    return reader.details()


def test_what_the_lines_tell_is_summed_up():
    chat = {
        "prompt_tokens_details": {"cached_tokens": 7},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    response = {
        "input_tokens_details": {"cached_tokens": 1},
        "output_tokens_details": {"reasoning_tokens": 2},
    }
    assert read(line(**chat), line(**response), line(prompt_tokens=3)) == TokenDetails(8, 7)


def test_a_zero_that_was_told_is_one():
    assert read(line(prompt_tokens_details={"cached_tokens": 0})) == TokenDetails(0, None)


@pytest.mark.parametrize(
    "told",
    [
        line(),
        line(prompt_tokens_details=None, completion_tokens_details={"reasoning_tokens": None}),
        line(prompt_tokens_details={"cached_tokens": -1}),
        line(prompt_tokens_details=[]),
        b'{"response": {"body": {"usage": null}}}',
        b'{"response": {"body": []}}',
        b'{"response": null}',
        b"{",
    ],
)
def test_what_was_not_told_is_not_zero(told):
    assert read(told) == TokenDetails(None, None)

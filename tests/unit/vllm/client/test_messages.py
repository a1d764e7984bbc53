"""What a conversation may be."""

import pytest

from dispatcher import InputError
from dispatcher.vllm.client.messages import conversation, encode


def test_a_text_is_what_the_user_says():
    assert conversation("hello") == [{"role": "user", "content": "hello"}]


def test_messages_are_passed_on_as_they_are():
    messages = ({"role": "user", "content": [{"type": "text", "text": "x"}]}, {"role": "tool", "name": "n"})
    assert conversation(messages) == list(messages)


@pytest.mark.parametrize("wrong", [["hello"], [{"content": "x"}], [{"role": 3}], []])
def test_what_is_no_message_is_refused(wrong):
    with pytest.raises(InputError, match="messages"):
        conversation(wrong)


@pytest.mark.parametrize("wrong", ["\ud800", {1, object()}, object()])
def test_what_json_cannot_hold_is_refused(wrong):
    with pytest.raises(InputError, match="JSON"):
        encode({"messages": wrong})

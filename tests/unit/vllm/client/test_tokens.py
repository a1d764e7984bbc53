"""Tokens after a context."""

import msgspec
import pytest

from dispatcher import InputError
from dispatcher.vllm.client.tokens import Tokenization, after, body_of, continued, read_tokenization

ASK = [{"role": "user", "content": "a"}]


def cut(*ids):
    return Tokenization(ids, tuple(f"t{each}" for each in ids), 1024)


def test_what_comes_after_the_context_is_what_the_whole_has_more():
    assert after(cut(1, 2), cut(1, 2, 3, 4)) == cut(3, 4)
    assert after(cut(), cut(3)) == cut(3)
    assert after(cut(1), cut(1)) == cut()


def test_a_token_across_the_boundary_is_the_first_and_is_told():
    found = after(cut(1, 2), cut(1, 23, 4))
    assert (found.ids, found.strings, found.straddles) == ((23, 4), ("t23", "t4"), True)
    swallowed = after(cut(1, 2, 3), cut(1, 2))
    assert (swallowed.ids, swallowed.straddles) == ((), True)


def test_a_text_after_a_text_is_the_two_joined():
    assert continued("ab", "c", {}) == {"prompt": "abc", "return_token_strs": True}


def test_a_text_after_messages_is_the_answer_begun():
    found = continued(ASK, "yes", {"chat_template": "x", "seed": 1, "add_generation_prompt": True})
    assert found == {
        "messages": [*ASK, {"role": "assistant", "content": "yes"}],
        "return_token_strs": True,
        "add_generation_prompt": False,
        "continue_final_message": True,
        "chat_template": "x",
    }


def test_messages_are_cut_by_the_template_that_the_options_name():
    found = body_of(ASK, {"chat_template_kwargs": {"a": 1}, "temperature": 0})
    assert found == {"messages": ASK, "return_token_strs": True, "chat_template_kwargs": {"a": 1}}


def test_messages_have_no_context():
    with pytest.raises(InputError, match="must be a text"):
        continued("a", ASK, {})


def test_a_server_that_tells_no_strings_gives_none():
    found = read_tokenization({"tokens": [1, 2], "count": 2})
    assert (found.ids, found.strings, found.count, found.max_model_len) == ((1, 2), (), 2, None)
    with pytest.raises(msgspec.ValidationError):
        read_tokenization({"tokens": "12"})

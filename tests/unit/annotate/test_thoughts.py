"""A model's thinking told from its answer."""

import pytest

from dispatcher.annotate.thoughts import FAMILIES, split_thoughts


@pytest.mark.parametrize("marks", FAMILIES, ids=lambda marks: marks.begins[0])
def test_each_family_s_thoughts_are_told_from_the_answer(marks):
    for begin, end in zip(marks.begins, marks.ends, strict=True):
        assert split_thoughts(f"\n{begin}\nhm\n{end}\n\nan answer\n") == ("an answer", "hm")
        assert split_thoughts(f"{begin}half a thou") == ("", "half a thou")
        assert split_thoughts(f"An answer that names {begin} and {end}.")[1] is None


@pytest.mark.parametrize(
    "marks", [marks for marks in FAMILIES if not marks.words], ids=lambda marks: marks.ends[0]
)
def test_thoughts_that_the_prompt_began_end_all_the_same(marks):
    assert split_thoughts(f"hm\n{marks.ends[0]}\nan answer") == ("an answer", "hm")


@pytest.mark.parametrize("end", [end for marks in FAMILIES if not marks.words for end in marks.ends])
def test_no_end_is_missed_for_the_sake_of_speed(end):
    assert split_thoughts(f"hm{end}yes") == ("yes", "hm")


@pytest.mark.parametrize(
    ("text", "answer", "thoughts"),
    [
        ("<think>\nhm\n</think>\n<answer>\nyes\n</answer>", "yes", "hm"),
        ("hm\n</think>\n\n<response>\nyes\n</response>\n", "yes", "hm"),
        ("<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>yes<|END_RESPONSE|>", "yes", "hm"),
        ("<|channel>thought\nhm<channel|>yes<turn|>", "yes", "hm"),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>",
            "yes",
            "hm",
        ),
        ("<think></think>yes", "yes", ""),
        ("<think>a</think>b</think>c", "b</think>c", "a"),
        ("<think>one</think>\n<answer>yes", "yes", "one"),
    ],
)
def test_what_stands_around_thoughts_and_answer_is_left_out(text, answer, thoughts):
    assert split_thoughts(text) == (answer, thoughts)


@pytest.mark.parametrize(
    "text", ["", "yes", "  spaced  ", "1 < 2", "[a]", "My answer. Here is my response: no", "<b>x</b>"]
)
def test_an_answer_without_thoughts_stays_as_it_is(text):
    assert split_thoughts(text) == (text, None)

"""What is read from servers' answers, and what is refused."""

import pytest

from dispatcher.vllm.scoring.records import ScoringError
from dispatcher.vllm.scoring.wire import (
    read_chat,
    read_completion,
    read_echo,
    read_prompt_logprobs,
    read_tokens,
)


def completion(*places):
    """Places as (token, logprob, top)."""
    tokens, logprobs, tops = zip(*places, strict=True)
    lists = {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops}
    return {"choices": [{"index": 0, "logprobs": lists}]}


def echo(index, *tokens):
    entries = [{str(token): {"logprob": -float(token)}} for token in tokens]
    return {"index": index, "prompt_logprobs": [None, *entries[1:]]}


def test_forbidden_tokens_are_left_out_and_say_that_the_list_is_complete():
    (listed,) = read_completion(
        completion(("token_id:1", -0.5, {"token_id:1": -0.5, "token_id:2": -9999.0})), listed_max=2
    )
    assert (listed.chosen, listed.logprobs, listed.complete) == (1, {1: -0.5}, True)


def test_a_full_list_is_not_complete_and_a_short_one_is():
    answer = completion(("token_id:1", -0.5, {"token_id:1": -0.5, "token_id:2": -1.0}))
    assert [read_completion(answer, size)[0].complete for size in (2, 3)] == [False, True]


def test_a_chosen_token_that_is_not_among_the_likeliest_counts_too():
    (listed,) = read_completion(completion(("token_id:3", -4.0, {"token_id:1": -0.5})), listed_max=1)
    assert listed.logprobs == {1: -0.5, 3: -4.0}


def test_prompts_are_read_in_the_order_in_which_they_were_sent():
    answer = {"choices": [echo(1, 1, 3), echo(0, 1, 2)]}
    found = read_echo(answer, [(1, 2), (1, 3)], 1)
    assert [[token.id for token in tokens] for tokens in found] == [[2], [3]]


@pytest.mark.parametrize(
    ("read", "answer", "why"),
    [
        (lambda it: read_completion(it, 20), completion(("yes", -0.5, {})), "return_tokens_as_token_ids"),
        (lambda it: read_completion(it, 20), completion(("token_id:1", 1e9, {})), "logarithm"),
        (
            lambda it: read_completion(it, 20),
            completion(("token_id:1", -0.5, {"token_id:1": 800.0})),
            "logarithm",
        ),
        (
            lambda it: read_completion(it, 20),
            {"choices": [{"logprobs": {"tokens": ["token_id:1"], "token_logprobs": []}}]},
            "more tokens",
        ),
        (lambda it: read_completion(it, 20), {"choices": []}, "no answer"),
        (lambda it: read_completion(it, 20), {"choices": [{"logprobs": None}]}, "cannot be read"),
        (lambda it: read_chat(it, 20), {"choices": []}, "no answer"),
        (lambda it: read_echo(it, [(1, 2)], 1), {"choices": []}, "0 of 1"),
        (lambda it: read_echo(it, [(1, 2)], 1), {"choices": [echo(0, 1, 3)]}, "other tokens"),
        (lambda it: read_echo(it, [(1, 2)], 1), {"choices": [{"index": 0}]}, "prompt_logprobs"),
        (lambda it: read_prompt_logprobs(it, ()), {"choices": []}, "prompt_logprobs"),
        (read_tokens, {"detail": "Not Found"}, "cannot be read"),
    ],
)
def test_an_answer_that_does_not_hold_what_was_asked_for_is_an_error(read, answer, why):
    with pytest.raises(ScoringError, match=why):
        read(answer)

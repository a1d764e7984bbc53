"""Classifying by scoring each label, against the same sums from a toy model."""

import asyncio
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_model import ToyModel

from dispatcher.errors import InputError
from dispatcher.vllm.scoring import Method, ScoringError, classify, exact
from dispatcher.vllm.scoring.exact import normalised

MESSAGES = [{"role": "user", "content": "x"}]
EXACT = "exact"


def truth(model, labels):
    """Each label's log-probability in the model's own tokens, whichever way it ends."""
    before = model.tokens(model.prompt(MESSAGES))
    return {
        label: math.log(
            sum(math.exp(model.sequence_logprob(before, (*model.tokens(label), end))) for end in model.ends)
        )
        for label in labels
    }


async def assert_exact(model, labels):
    found = await classify(model, MESSAGES, labels, method=EXACT)
    expected = truth(model, labels)
    total = math.fsum(map(math.exp, expected.values()))
    assert found.logprobs == pytest.approx(expected)
    assert found.probabilities == pytest.approx({label: math.exp(v) / total for label, v in expected.items()})
    assert not found.approximate
    assert found.coverage == 1
    return found


async def test_labels_are_scored_by_one_request_and_their_end_by_another():
    model = ToyModel(["yes", "no"])
    found = await assert_exact(model, ["yes", "no", "perhaps"])
    assert found.calls == model.generations == 2


async def test_a_label_that_begins_another_is_scored_with_its_end():
    await assert_exact(ToyModel(["posi", "positive"]), ["p", "posi", "positive"])


async def test_each_way_to_end_counts():
    await assert_exact(ToyModel(ends=3), ["a", "ab"])


async def test_many_labels_take_several_requests(monkeypatch):
    monkeypatch.setattr(exact, "PROMPTS_MAX", 4)
    found = await assert_exact(ToyModel(ends=2), ["a", "b", "ab", "c", "d"])
    assert found.calls == 1 + 3


async def test_labels_that_share_a_token_with_the_prompt_are_scored_after_the_prompt_s_tokens():
    await assert_exact(ToyModel([":a", "bc"]), ["abc", "b"])


async def test_labels_that_a_template_trims_are_scored_whole():
    await assert_exact(ToyModel(strip=True), [" a", "a"])


def test_normalisations_are_per_label_token_and_byte():
    logprobs, tokens = {"é": -2.0, "abcd": -4.0}, {"é": 4, "abcd": 2}
    ratio = {
        kind: math.log(found["é"] / found["abcd"])
        for kind in ("sum", "mean", "bytes")
        for found in (normalised(logprobs, tokens, kind),)
    }
    assert ratio == pytest.approx({"sum": 2.0, "mean": 1.5, "bytes": 0.0})


async def test_the_end_is_a_token_of_the_mean():
    model, labels = ToyModel(["yes"]), ["yes", "no"]
    found = await classify(model, MESSAGES, labels, method=Method(mode="exact", normalisation="mean"))
    own = truth(model, labels)
    weights = {"yes": math.exp(own["yes"] / 2), "no": math.exp(own["no"] / 3)}
    assert found.probabilities["yes"] == pytest.approx(weights["yes"] / sum(weights.values()))


async def test_labels_are_scored_after_the_prompt_that_asks_though_an_answer_would_follow_another():
    await assert_exact(ToyModel(head="u:"), ["yes", "no"])


async def test_images_are_refused():
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    with pytest.raises(InputError, match="images"):
        await classify(ToyModel(), image, ["a"], method=EXACT)


async def test_a_server_that_does_not_score_prompts_is_an_error():
    class Silent(ToyModel):
        def _scored(self, ids):  # noqa: ARG002 - as the toy has it
            return None

    with pytest.raises(ScoringError, match="prompt_logprobs"):
        await classify(Silent(), MESSAGES, ["a", "b"], method=EXACT)


async def test_a_server_that_scores_other_tokens_is_an_error():
    model = ToyModel()
    scored = model._scored
    model._scored = lambda ids: scored((*ids[:-1], 7))
    with pytest.raises(ScoringError, match="other tokens"):
        await classify(model, MESSAGES, ["a", "b"], method=EXACT)


@given(
    st.lists(st.text("abé日", min_size=1, max_size=4), min_size=1, max_size=5, unique=True),
    st.lists(st.text("abé日", min_size=2, max_size=3), max_size=4),
    st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_any_labels_are_scored_as_by_hand(labels, merges, seed):
    asyncio.run(assert_exact(ToyModel(merges, seed=seed), labels))

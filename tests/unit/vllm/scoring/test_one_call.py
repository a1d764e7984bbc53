"""The masked distribution over labels, against the same enumerated from a toy model."""

import asyncio
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_model import ToyModel

from dispatcher.errors import ConfigError, ConstraintIgnoredError
from dispatcher.vllm.scoring import Method, ScoringError, Spellings, classify

MESSAGES = [{"role": "user", "content": "x"}]
UNLIMITED = Method(max_calls=None, unresolved_max=0.0)


def truth(model, labels):
    return model.masked(model.tokens(model.prompt(MESSAGES)), labels)


async def classified(model, labels, method=UNLIMITED):
    return await classify(model, MESSAGES, labels, method=method)


async def assert_enumerated(model, labels, method=UNLIMITED):
    found = await classified(model, labels, method)
    assert not found.approximate
    assert found.probabilities == pytest.approx(truth(model, labels), abs=1e-9)
    return found


async def test_labels_that_differ_in_their_first_token_take_one_call():
    model = ToyModel(["yes", "no"])
    found = await assert_enumerated(model, ["yes", "no"])
    assert found.calls == model.generations == 1
    assert found.coverage == pytest.approx(1)


async def test_a_label_that_begins_another_is_told_apart_by_its_end():
    await assert_enumerated(ToyModel(["posi", "positive", "tive"]), ["p", "posi", "positive"])


async def test_every_tokenisation_of_a_label_counts():
    model = ToyModel(["ab", "abc", "bc"])
    found = await assert_enumerated(model, ["abc", "abd"])
    assert found.calls > 1


async def test_several_ends_of_an_answer_are_one_label_s():
    await assert_enumerated(ToyModel(["ab"], ends=3), ["a", "ab"])


async def test_a_blank_that_is_dropped_at_the_beginning_of_a_text_tells_labels_apart():
    model = ToyModel([" good", "go"])
    model.drops_blank = True
    await assert_enumerated(model, ["good", " good", "go", " go"])


async def test_a_token_that_changes_what_is_before_it_leaves_its_share_open():
    model = ToyModel(["no"])
    text = model.text
    model.text = lambda ids: text(ids).replace("ano", "byes")
    found = await classified(model, ["no", "yes"])
    assert found.approximate
    low, high = found.bounds["no"]
    assert low - 1e-9 <= truth(model, ["no", "yes"])["no"] <= high + 1e-9


async def test_an_end_that_has_no_text_is_an_end_all_the_same():
    await assert_enumerated(ToyModel(["ab"], end=""), ["a", "ab", "b"])


async def test_tokens_that_are_part_of_a_character_are_resolved():
    labels = ["é", "è", "日本", "日光", "🙂", "🙃"]
    await assert_enumerated(ToyModel(["日", "日本", "\N{SLIGHTLY SMILING FACE}".encode()[:2]]), labels)


@pytest.mark.parametrize(("listed_max", "calls_max"), [(20, 30), (8, 40)])
async def test_more_allowed_tokens_than_a_server_lists_are_listed_in_groups(listed_max, calls_max):
    labels = [f"{first}{second}" for first in "abcdefghijklmnopqrstuvwxyz" for second in "xy"]
    model = ToyModel(spread=1.0)
    found = await assert_enumerated(model, labels, replace(UNLIMITED, listed_max=listed_max))
    assert found.calls <= calls_max
    listings = [body for path, body in model.bodies if path == "/v1/completions" and body["max_tokens"] == 1]
    assert len(listings) >= 2, "a listing takes one token"


async def test_one_call_alone_gives_bounds_that_hold():
    model = ToyModel(["ab"])
    labels = ["abc", "abd", "c"]
    found = await classified(model, labels, Method(max_calls=1))
    assert (found.approximate, found.calls) == (True, 1)
    assert found.coverage < 1
    assert math.fsum(found.probabilities.values()) == pytest.approx(1)
    for label, share in truth(model, labels).items():
        low, high = found.bounds[label]
        assert low - 1e-12 <= share <= high + 1e-12
        assert low <= found.probabilities[label] <= high


async def test_calls_end_once_little_enough_is_unresolved():
    model = ToyModel(["ab"])
    loose = await classified(model, ["abc", "abd"], Method(max_calls=None, unresolved_max=0.5))
    strict = await classified(model, ["abc", "abd"])
    assert 1 - loose.coverage <= 0.5
    assert loose.calls < strict.calls


async def test_a_single_label_is_certain():
    found = await classified(ToyModel(), ["yes"])
    assert dict(found.probabilities) == {"yes": 1.0}
    assert found.label == "yes"


async def test_token_texts_are_asked_for_once():
    model, spellings = ToyModel(["ab"]), Spellings()
    for _ in range(2):
        await classify(model, MESSAGES, ["abc", "abd"], method=UNLIMITED, spellings=spellings)
    paths = [tuple(body["tokens"]) for path, body in model.bodies if path == "/detokenize"]
    assert len(paths) == len(set(paths))


async def test_of_images_only_one_call_is_made():
    class Seeing(ToyModel):
        def prompt(self, messages, *, continued=False):  # noqa: ARG002 - as the toy has it
            return "image"

    model = Seeing(["ab"])
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    found = await classify(model, image, ["abc", "abd"], method=UNLIMITED)
    assert (found.approximate, model.generations) == (True, 1)


class Freely(ToyModel):
    """Ignores constraints."""

    def __init__(self, **message):
        super().__init__()
        self._message = message

    def _chat(self, body):  # noqa: ARG002 - as the toy has it
        return {"choices": [{"message": self._message, "logprobs": None}]}


async def test_a_server_that_ignores_the_constraint_is_an_error():
    with pytest.raises(ConstraintIgnoredError):
        await classified(Freely(content="well"), ["yes", "no"])


class Unmasked(ToyModel):
    """Answers with a label, and lists tokens as if any might follow."""

    def logprobs(self, before, allowed=None):
        found = super().logprobs(before)
        return found if allowed is None else {**found, **dict.fromkeys(allowed, -0.1)}


async def test_a_server_that_answers_well_and_lists_what_begins_no_label_ignores_the_constraint():
    with pytest.raises(ConstraintIgnoredError, match="begins no label"):
        await classified(Unmasked(), ["yes", "no"])


async def test_a_server_without_logprobs_is_an_error():
    with pytest.raises(ScoringError, match="no log-probabilities"):
        await classified(Freely(content="yes"), ["yes", "no"])


async def test_a_model_that_thinks_first_is_an_error_that_says_how_to_stop_it():
    with pytest.raises(ScoringError, match="enable_thinking"):
        await classified(Freely(content="", reasoning="hmm"), ["yes", "no"])


@pytest.mark.parametrize(
    ("labels", "fault"),
    [
        ([], "at least one"),
        ("yes", "list of texts"),
        (["a", "a"], "repeats"),
        (["a", " "], "blank"),
        (["\ud800"], "whole characters"),
        (["a\ufffd"], "whole characters"),
    ],
)
async def test_labels_that_cannot_be_told_apart_are_refused(labels, fault):
    with pytest.raises(ConfigError, match=fault):
        await classified(ToyModel(), labels)


async def test_every_wrong_option_is_named_at_once():
    with pytest.raises(ConfigError) as caught:
        await classified(ToyModel(), ["a"], Method("?", normalisation="?", max_calls=0, unresolved_max=1))
    assert [fault.where for fault in caught.value.faults] == [
        "mode",
        "normalisation",
        "max_calls",
        "unresolved_max",
    ]


async def test_descriptions_are_told_and_messages_are_left_as_they_are():
    model = ToyModel()
    await classify(model, "the text", {"good": "praise", "bad": ""})
    (told,) = model.bodies[0][1]["messages"]
    assert told["role"] == "user"
    assert "- good: praise\n- bad\n" in told["content"]
    assert told["content"].endswith("the text")
    model.bodies.clear()
    await classify(model, MESSAGES, ["good", "bad"])
    assert model.bodies[0][1]["messages"] == MESSAGES


# --- any labels, any model ---

ALPHABET = "abé日"
LABELS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=5, unique=True)


def straddles(merge):
    """Whether a token begins within one character and ends within another.

    Several of them in a row never come to the end of one, and three tokens can be forced at most: what is
    behind them stays unresolved, and the answer says that it is approximate.
    """
    text = merge.decode(errors="replace")
    return text[0] == text[-1] == "\ufffd"


@st.composite
def worlds(draw, *, straddling=False):
    labels = draw(LABELS)
    pool = sorted(
        {
            data[start:end]
            for data in map(str.encode, labels)
            for start in range(len(data))
            for end in range(start + 2, len(data) + 1)
            if straddling or not straddles(data[start:end])
        }
    )
    merges = draw(st.lists(st.sampled_from(pool), max_size=6)) if pool else []
    model = ToyModel(
        merges,
        seed=draw(st.integers(0, 1000)),
        spread=draw(st.sampled_from([0.0, 1.0, 8.0])),
        ends=draw(st.integers(1, 2)),
    )
    return model, labels


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_unlimited_calls_find_the_enumerated_distribution(world):
    found = asyncio.run(assert_enumerated(*world))
    assert math.fsum(found.probabilities.values()) == pytest.approx(1)


@given(
    st.lists(st.text("abcdefgé", min_size=1, max_size=2), min_size=6, max_size=12, unique=True),
    st.integers(0, 1000),
)
@settings(max_examples=30, deadline=None)
def test_tokens_that_are_not_listed_at_once_are_found_all_the_same(labels, seed):
    asyncio.run(assert_enumerated(ToyModel(seed=seed), labels, replace(UNLIMITED, listed_max=5)))


@given(worlds(straddling=True), st.integers(1, 4), st.sampled_from([1, 2, 20]))
@settings(max_examples=60, deadline=None)
def test_the_bounds_hold_after_any_number_of_calls(world, max_calls, listed_max):
    model, labels = world
    found = asyncio.run(classified(model, labels, Method(max_calls=max_calls, listed_max=listed_max)))
    assert found.calls <= max_calls
    assert math.fsum(found.probabilities.values()) == pytest.approx(1)
    for label, share in truth(model, labels).items():
        low, high = found.bounds[label]
        assert low - 1e-9 <= share <= high + 1e-9

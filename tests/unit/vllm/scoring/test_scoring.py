"""Scores of completions, against a toy model's own."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_model import ToyModel

from dispatcher.errors import InputError
from dispatcher.vllm.scoring import Boundary, Prompt, ScoringError, score

MESSAGES = [{"role": "user", "content": "x"}]
CHAT = Prompt(MESSAGES)


def prompt_text(model, prompt):
    return prompt.given if isinstance(prompt.given, str) else model.prompt(prompt.given)


async def assert_scored(model, prompt, completion):
    """The score is that of generating the completion's tokens after the prompt's."""
    found = await score(model, prompt, completion)
    before = model.tokens(prompt_text(model, prompt))
    ids = tuple(token.id for token in found.tokens)
    assert model.text(ids) == completion == "".join(token.text for token in found.tokens)
    assert found.total == pytest.approx(model.sequence_logprob(before, ids))
    assert [token.logprob for token in found.tokens] == pytest.approx(
        [model.sequence_logprob((*before, *ids[:place]), [token]) for place, token in enumerate(ids)]
    )
    return found


async def test_a_completion_is_scored_through_the_chat_template():
    model = ToyModel(["yes", "es"])
    found = await assert_scored(model, CHAT, "yes!")
    assert [token.text for token in found.tokens] == ["yes", "!"]
    assert found.boundary is Boundary.TOKEN
    assert found.mean == pytest.approx(found.total / 2)
    assert dict(model.posts) == {"/tokenize": 1, "/v1/chat/completions": 1}
    body = model.bodies[-1][1]
    assert body["messages"][-1] == {"role": "assistant", "content": "yes!"}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


async def test_a_completion_is_scored_after_a_plain_text():
    model = ToyModel([" there"])
    found = await assert_scored(model, Prompt("hello"), " there")
    assert len(found.tokens) == 1
    assert model.posts["/v1/chat/completions"] == 0


async def test_a_completion_whose_first_blank_is_lost_when_it_stands_alone_begins_at_a_token_all_the_same():
    model = ToyModel([" there"])
    model.drops_blank = True
    found = await score(model, Prompt("hello"), " there")
    assert found.boundary is Boundary.TOKEN
    assert [token.id for token in found.tokens] == list(model.tokens(" there"))


@pytest.mark.parametrize(("prompt", "merge"), [(CHAT, ":ye"), (Prompt("it is y"), "yye")])
async def test_where_a_token_straddles_the_boundary_the_completion_has_tokens_of_its_own(prompt, merge):
    model = ToyModel([merge, "yes"])
    found = await assert_scored(model, prompt, "yes")
    assert found.straddles
    assert [token.text for token in found.tokens] == ["yes"]


async def test_a_template_that_trims_does_not_change_what_is_scored():
    found = await assert_scored(ToyModel(strip=True), CHAT, " yes ")
    assert found.boundary is Boundary.TEMPLATE
    assert not found.straddles


@pytest.mark.parametrize(("head", "tells_ids"), [("u:", True), ("U;", True), ("U;", False)])
async def test_a_template_that_writes_the_prompt_otherwise_before_an_answer_does_not_change_what_is_scored(
    head, tells_ids
):
    model = ToyModel(head=head)
    model.tells_ids = tells_ids
    found = await assert_scored(model, CHAT, "yes")
    assert found.boundary is Boundary.TEMPLATE


async def test_a_character_s_bytes_have_their_text_at_the_last():
    found = await assert_scored(ToyModel(), CHAT, "é日")
    assert [token.text for token in found.tokens] == ["", "é", "", "", "日"]


async def test_template_fields_go_with_every_body_of_messages():
    model = ToyModel()
    await score(model, Prompt(MESSAGES, {"chat_template_kwargs": {"enable_thinking": False}}), "a")
    assert all("enable_thinking" in body["chat_template_kwargs"] for _, body in model.bodies)


@pytest.mark.parametrize(
    ("prompt", "completion", "why"),
    [
        (CHAT, "", "empty completion"),
        (Prompt([]), "a", "at least one"),
        (Prompt(""), "a", "empty prompt"),
    ],
)
async def test_where_there_is_nothing_to_score_it_says_so(prompt, completion, why):
    with pytest.raises(InputError, match=why):
        await score(ToyModel(), prompt, completion)


async def test_a_text_that_comes_back_as_another_is_an_error():
    model = ToyModel()
    tokens = model.tokens
    model.tokens = lambda text: tokens(text.replace("é", "e"))
    with pytest.raises(ScoringError, match="cannot write"):
        await score(model, CHAT, "é")


async def test_a_tokenizer_that_puts_a_blank_before_every_text_is_seen_through():
    """As sentencepiece does: the text alone is cut as if a word began there."""
    model = ToyModel([" yes", ":ye"])
    tokens = model.tokens
    model.tokens = lambda text: tokens(text if text.startswith((":", "U:", "\n", "0")) else f" {text}")
    found = await score(model, CHAT, "yes")
    assert found.straddles
    assert model.text([token.id for token in found.tokens]) == "yes"


async def test_images_are_scored_through_the_template_alone():
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    model = ToyModel()
    assert (await score(model, Prompt(image), "yes")).boundary is Boundary.TOKEN
    with pytest.raises(InputError, match="images"):
        await score(ToyModel([":y"]), Prompt(image), "yes")


@given(
    st.text("ab é日:", min_size=1, max_size=5),
    st.lists(st.text("ab é日:", min_size=2, max_size=3), max_size=5),
    st.sampled_from([CHAT, Prompt("ab"), Prompt("é")]),
)
@settings(max_examples=60, deadline=None)
def test_any_completion_is_scored_as_by_hand(completion, merges, prompt):
    asyncio.run(assert_scored(ToyModel(merges), prompt, completion))

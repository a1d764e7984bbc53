"""Scores and distributions over HTTP, from fake servers."""

import math

import pytest

from dispatcher.errors import ConstraintIgnoredError, RequestFailedError
from dispatcher.testing import FakeServer, FakeServerSettings
from dispatcher.testing.logprobs import score_prompt
from dispatcher.testing.tokens import pieces
from dispatcher.vllm.client import AsyncVLLMClient
from dispatcher.vllm.scoring import Boundary, Method, Prompt, classify, score

MESSAGES = [{"role": "user", "content": "Is it good?"}]
LABELS = ["good", "goodish", "bad", "schön", "schon"]
UNLIMITED = Method(max_calls=None, unresolved_max=0.0)


@pytest.fixture
async def server():
    async with FakeServer() as server:
        yield server


@pytest.fixture
async def client(server):
    async with AsyncVLLMClient(server.url) as client:
        yield client


def logprobs_in(text):
    """What the fake makes up for each token of a text."""
    split = pieces(text)
    return split, score_prompt(split)


async def test_a_chat_s_completion_is_scored_token_by_token(client):
    found = await score(client, Prompt(MESSAGES), "Good, yes")
    split, expected = logprobs_in("<|user|>\nIs it good?\n<|assistant|>\nGood, yes")
    count = len(found.tokens)
    assert found.boundary is Boundary.TOKEN
    assert [token.text for token in found.tokens] == split[-count:] == ["Good", ",", " yes"]
    assert [token.logprob for token in found.tokens] == expected[-count:]


async def test_a_completion_that_shares_a_token_with_a_plain_prompt_is_scored_after_the_prompt_s(client):
    found = await score(client, Prompt("un"), "like")
    assert found.straddles
    assert found.total == score_prompt(["un", "like"])[1]


async def test_exact_scores_all_labels_at_once(client, server):
    found = await classify(client, MESSAGES, LABELS, method="exact")
    prompt, end = "<|user|>\nIs it good?\n<|assistant|>\n", "</s>"
    expected = {}
    for label in LABELS:
        split = [*pieces(prompt), *pieces(label), end]
        expected[label] = sum(score_prompt(split)[len(pieces(prompt)) :])
    assert found.logprobs == pytest.approx(expected)
    assert math.fsum(found.probabilities.values()) == pytest.approx(1)
    assert sum(record.route == "/v1/completions" for record in server.requests) == 2


async def test_one_call_makes_one_generation_where_that_is_enough(client, server):
    found = await classify(client, MESSAGES, ["good", "bad"], method=UNLIMITED)
    assert (found.calls, found.approximate) == (1, False)
    assert math.fsum(found.probabilities.values()) == pytest.approx(1)
    assert server.requests[0].route == "/v1/chat/completions"


async def test_one_call_resolves_what_begins_alike_by_further_calls(client):
    once = await classify(client, MESSAGES, LABELS, method=Method(max_calls=1))
    found = await classify(client, MESSAGES, LABELS, method=UNLIMITED)
    assert (once.approximate, found.approximate) == (True, False)
    assert found.calls > 1
    for label, (low, high) in once.bounds.items():
        assert low - 1e-9 <= found.probabilities[label] <= high + 1e-9


async def test_labels_with_descriptions_of_a_text_are_asked_about_in_one_message(client):
    found = await classify(client, "It is.", {"good": "praise", "bad": "blame"})
    assert found.label in {"good", "bad"}


async def test_the_client_s_methods_are_these_functions(client):
    assert await client.score(MESSAGES, "Good") == await score(client, Prompt(MESSAGES), "Good")
    assert await client.score("hello", " all") == await score(client, Prompt("hello"), " all")
    for mode in ("one_call", "exact"):
        assert await client.classify(MESSAGES, LABELS, mode) == await classify(
            client, MESSAGES, LABELS, method=mode
        )


@pytest.mark.parametrize("mode", ["one_call", "exact"])
@pytest.mark.parametrize("version", ["0.10.2", "0.11.0"])
async def test_older_servers_are_asked_in_their_own_words(version, mode):
    async with (
        FakeServer(FakeServerSettings(version=version)) as server,
        AsyncVLLMClient(server.url) as client,
    ):
        found = await classify(client, MESSAGES, ["good", "bad"], method=mode)
    assert found.label in {"good", "bad"}


@pytest.mark.parametrize("mode", ["one_call", "exact"])
async def test_a_server_that_says_it_is_newer_than_it_is_ignores_the_constraint_and_that_is_an_error(mode):
    async with (
        FakeServer(FakeServerSettings(version="0.10.2")) as server,
        AsyncVLLMClient(server.url, version="0.32.0") as client,
    ):
        with pytest.raises(ConstraintIgnoredError):
            await classify(client, MESSAGES, ["good", "bad"], method=Method(mode))


async def test_what_the_server_refuses_is_raised_as_it_said_it(client):
    with pytest.raises(RequestFailedError, match="logprobs"):
        await classify(client, MESSAGES, ["good", "bad"], method=Method(listed_max=21))

"""Scores and distributions of a real vLLM, against its own echo and against its weights in transformers."""

import json
import math
import subprocess
from pathlib import Path

import pytest
import weights
from real_rows import COMPLETIONS, MODEL
from vllm_fleet import installation

from dispatcher.vllm.client import AsyncVLLMClient
from dispatcher.vllm.scoring import Boundary, Method, Prompt, classify, score

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

MESSAGES = [{"role": "user", "content": "Classify the sentiment of this text: the lazy dog."}]
CHAT = Prompt(MESSAGES)
LABELS = {
    "plain": ["positive", "negative", "neutral"],
    "nested": ["p", "posi", "positive", "positive thing"],
    "unicode": ["é", "è", "日本", "日光", "🙂", "🙃"],
    "many": [f"{first}{second}" for first in "abcdefghijklmnopqrstuvwxyz" for second in "xyz"],
}
UNLIMITED = Method(max_calls=None, unresolved_max=0.0)
EXACT = "exact"


@pytest.fixture
async def client(fleet):
    async with AsyncVLLMClient(fleet.first.url, model=MODEL) as client:
        yield client


@pytest.fixture(scope="module")
def by_weights():
    """By the name of the labels: what transformers computes."""
    folder = installation()
    asked = json.dumps({"messages": MESSAGES, "labels": [*LABELS.values()]})
    done = subprocess.run(
        [folder / "venv" / "bin" / "python", Path(weights.__file__), folder / "tiny"],
        input=asked,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return dict(zip(LABELS, json.loads(done.stdout.splitlines()[-1]), strict=True))


async def echoed(client, prompt):
    """The tokens of a prompt as the server's echo has them: where each begins, and its log-probability."""
    body = {"model": MODEL, "prompt": prompt, "echo": True, "max_tokens": 0, "logprobs": 0}
    (choice,) = (await client.post(COMPLETIONS, body))["choices"]
    logprobs = choice["logprobs"]
    return [*zip(logprobs["text_offset"], logprobs["token_logprobs"], strict=True)]


@pytest.mark.parametrize(
    ("text", "completion"),
    [
        ("the quick brown fox", " jumps over the lazy dog."),
        ("Sentiment:", " positive"),
        ("hello", "!"),
        ("日本", "日光 é"),
    ],
)
async def test_a_score_is_the_sum_of_the_echo_where_a_token_begins_at_the_boundary(client, text, completion):
    found = await score(client, Prompt(text), completion)
    tokens = await echoed(client, text + completion)
    expected = [logprob for offset, logprob in tokens if offset >= len(text)]
    assert found.boundary is Boundary.TOKEN
    assert found.total == pytest.approx(sum(expected), abs=1e-4)
    assert [token.logprob for token in found.tokens] == pytest.approx(expected, abs=1e-4)
    assert "".join(token.text for token in found.tokens) == completion


async def test_where_a_token_straddles_the_boundary_the_prompt_s_tokens_stay_and_the_completion_has_its_own(
    client,
):
    found = await score(client, Prompt("Classify: posi"), "tive")
    assert found.straddles
    ids = [*(await client.tokenize("Classify: posi")).ids, *(token.id for token in found.tokens)]
    tokens = await echoed(client, ids)
    assert found.total == pytest.approx(sum(logprob for _, logprob in tokens[-len(found.tokens) :]), abs=1e-4)
    assert await client.detokenize(ids) == "Classify: positive"


async def test_a_chat_s_completion_is_scored_after_the_template_s_tokens(client):
    completion = "positive é."
    found = await score(client, CHAT, completion)
    ids = [*(await client.tokenize(MESSAGES)).ids, *(token.id for token in found.tokens)]
    tokens = await echoed(client, ids)
    expected = [logprob for _, logprob in tokens[-len(found.tokens) :]]
    assert [token.logprob for token in found.tokens] == pytest.approx(expected, abs=1e-4)
    assert "".join(token.text for token in found.tokens) == completion


@pytest.mark.parametrize("name", LABELS)
async def test_exact_is_what_the_weights_say(client, by_weights, name):
    found = await classify(client, MESSAGES, LABELS[name], method=EXACT)
    expected = by_weights[name]["logprobs"]
    total = math.fsum(map(math.exp, expected.values()))
    assert found.logprobs == pytest.approx(expected, abs=1e-5)
    assert found.probabilities == pytest.approx(
        {label: math.exp(logprob) / total for label, logprob in expected.items()}, abs=1e-5
    )


@pytest.mark.parametrize("name", LABELS)
async def test_exact_is_what_the_server_s_own_echo_says(client, name):
    found = await classify(client, MESSAGES, LABELS[name], method=EXACT)
    before = (await client.tokenize(MESSAGES)).ids
    end = (await client.tokenize("<|im_end|>")).ids
    for label in LABELS[name][:4]:
        ids = [*before, *(await client.tokenize(label)).ids, *end]
        tokens = await echoed(client, ids)
        assert found.logprobs[label] == pytest.approx(
            sum(logprob for _, logprob in tokens[len(before) :]), abs=1e-5
        )


@pytest.mark.parametrize("name", LABELS)
async def test_one_call_with_unlimited_calls_is_the_masked_distribution_of_the_weights(
    client, by_weights, name
):
    found = await classify(client, MESSAGES, LABELS[name], method=UNLIMITED)
    assert not found.approximate
    assert found.probabilities == pytest.approx(by_weights[name]["masked"], abs=1e-5)


@pytest.mark.parametrize("name", LABELS)
async def test_one_call_alone_says_how_much_it_knows(client, by_weights, name):
    found = await classify(client, MESSAGES, LABELS[name], method=Method(max_calls=1))
    assert found.calls == 1
    for label, share in by_weights[name]["masked"].items():
        low, high = found.bounds[label]
        assert low - 1e-5 <= share <= high + 1e-5

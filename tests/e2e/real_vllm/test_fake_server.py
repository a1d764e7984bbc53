"""The fake server against the real one: the same question gets the same status and an answer of one build."""

import json

import httpx2
import pytest
from real_rows import CHAT, COMPLETIONS, EMBEDDER, EMBEDDINGS, MODEL, TOKENIZE
from vllm_fleet import CONTEXT_TOKENS, Samples, scrape

from dispatcher.testing import FakeServer, FakeServerSettings
from dispatcher.vllm.telemetry import read_telemetry

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

MESSAGES = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b", "c"]}}, "required": ["a"]}
LISTED = {"structured_outputs": {"choice": ["", "tive"]}, "return_tokens_as_token_ids": True}
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


def chat(**more):
    return CHAT, {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, **more}


def complete(**more):
    return COMPLETIONS, {"model": MODEL, "prompt": "hello there", "max_tokens": 4, **more}


GENERATION = {
    "chat": chat(min_tokens=8),
    "chat_without_model": (CHAT, {"messages": MESSAGES, "max_tokens": 2, "min_tokens": 2}),
    "chat_logprobs": chat(min_tokens=8, logprobs=True, top_logprobs=2),
    "chat_prompt_logprobs": chat(min_tokens=8, prompt_logprobs=0, add_generation_prompt=False),
    "chat_choice": chat(structured_outputs={"choice": ["positive", "negative"]}),
    "chat_choice_listed": chat(logprobs=True, top_logprobs=5, **LISTED),
    "chat_schema": chat(response_format=SCHEMA_FORMAT, max_tokens=400),
    "completion": complete(min_tokens=4),
    "completion_choices": complete(min_tokens=4, n=2),
    "completion_batch": complete(min_tokens=4, prompt=["a", "b"]),
    "completion_token_ids": complete(min_tokens=4, prompt=[70, 71]),
    "completion_logprobs": complete(min_tokens=4, logprobs=1),
    "completion_scored": complete(max_tokens=0, echo=True, logprobs=1),
    "completion_choice_listed": complete(max_tokens=8, logprobs=5, **LISTED),
    "completion_scored_ids": complete(
        max_tokens=0, echo=True, prompt_logprobs=0, prompt=[[70, 71], [72, 73]]
    ),
    "completion_prompt_logprobs": complete(min_tokens=4, prompt_logprobs=0),
    "limit_cut_to_the_context": complete(max_tokens=CONTEXT_TOKENS, stop=["e"]),
    # The likeliest tokens, which are text here: of two others, one answer in eight has none.
    "responses": (
        "/v1/responses",
        {"model": MODEL, "input": "hello", "max_output_tokens": 2, "temperature": 0},
    ),
    "tokenize": (TOKENIZE, {"model": MODEL, "prompt": "hello"}),
    "tokenize_strings": (TOKENIZE, {"model": MODEL, "prompt": "hello", "return_token_strs": True}),
    "tokenize_messages": (TOKENIZE, {"model": MODEL, "messages": MESSAGES}),
    "detokenize": ("/detokenize", {"model": MODEL, "tokens": [70, 71]}),
}
POOLING = {
    "embedding": (EMBEDDINGS, {"model": EMBEDDER, "input": "a"}),
    "embedding_base64": (EMBEDDINGS, {"model": EMBEDDER, "input": ["a"], "encoding_format": "base64"}),
    "pooling": ("/pooling", {"model": EMBEDDER, "input": "a"}),
    "score": ("/score", {"model": EMBEDDER, "text_1": "a", "text_2": ["b", "c"]}),
    "score_v1": ("/v1/score", {"model": EMBEDDER, "text_1": "a", "text_2": "b"}),
    "rerank": ("/rerank", {"model": EMBEDDER, "query": "a", "documents": ["b", "c"], "top_n": 1}),
    "tokenize": (TOKENIZE, {"model": EMBEDDER, "prompt": "hello"}),
}
REFUSALS = {
    "unknown_model": chat(model="nobody"),
    "unknown_model_tokenized": (TOKENIZE, {"model": "nobody", "prompt": "a"}),
    "context_length": complete(prompt=[70] * (CONTEXT_TOKENS + 1)),
    "context_length_chat": chat(messages=[{"role": "user", "content": "hello " * 2000}]),
    "context_full": complete(prompt=[70] * CONTEXT_TOKENS),
    "answer_above_the_context": complete(max_tokens=CONTEXT_TOKENS + 1),
    "answer_above_the_context_chat": chat(max_tokens=None, max_completion_tokens=CONTEXT_TOKENS + 1),
    "no_tokens": complete(max_tokens=0),
    "negative_tokens": chat(max_tokens=-1),
    "negative_temperature": chat(temperature=-1),
    "top_p": complete(top_p=2),
    "no_choices": complete(n=0),
    "too_many_choices": complete(n=16_385),
    "too_many_logprobs": complete(logprobs=100),
    "bad_regex": chat(structured_outputs={"regex": "(("}),
    "bad_schema": chat(structured_outputs={"json": {"type": "nope"}}),
    "empty_choice": chat(structured_outputs={"choice": []}),
    "two_constraints": chat(structured_outputs={"choice": ["a"], "regex": "a"}),
    "malformed_json": (CHAT, b'{"model": "tiny",'),
    "no_json": (COMPLETIONS, b"nope"),
    "no_object": (COMPLETIONS, b"[1]"),
    "lone_surrogate": (COMPLETIONS, b'{"prompt": "a\\ud83d", "max_tokens": 1}'),
    "no_messages": (CHAT, {"model": MODEL}),
    "empty_messages": chat(messages=[]),
    "no_prompt": (COMPLETIONS, {"model": MODEL}),
    "empty_prompt": complete(prompt=""),
    "wrong_type": complete(max_tokens="x"),
    "negative_token": ("/detokenize", {"model": MODEL, "tokens": [-1]}),
    "nothing_to_tokenize": (TOKENIZE, {"model": MODEL}),
    "no_such_route": ("/v1/tokenize", {"model": MODEL, "prompt": "a"}),
}
POOLING_REFUSALS = {
    "unknown_model": (EMBEDDINGS, {"model": "nobody", "input": "a"}),
    "context_length": (EMBEDDINGS, {"model": EMBEDDER, "input": "hello " * 2000}),
    "unequal_pairs": ("/score", {"model": EMBEDDER, "text_1": ["a", "b", "c"], "text_2": ["d", "e"]}),
}


def fake_of(server):
    return FakeServerSettings(models=server.names, root=str(server.root), max_model_len=CONTEXT_TOKENS)


async def post(url, route, body):
    data = body if isinstance(body, bytes) else json.dumps(body)
    async with httpx2.AsyncClient(trust_env=False, timeout=60.0) as client:
        answer = await client.post(url + route, content=data, headers={"Content-Type": "application/json"})
    return answer.status_code, answer.headers["Content-Type"], answer.json()


async def get(url, route):
    async with httpx2.AsyncClient(trust_env=False, timeout=60.0) as client:
        answer = await client.get(url + route)
    return answer.status_code, json.loads(answer.text or "null")


def build(value, name=""):
    """An answer's keys and the kinds of its values; of a list, its first entry's."""
    match value:
        case dict() if name == "top_logprobs" and "logprob" not in value:  # a completion has them by token
            return sorted({build(inner) for inner in value.values()})
        case dict():
            return {key: build(inner, key) for key, inner in value.items()}
        case list() if name == "bytes":  # none, where a token is a part of a character
            return "bytes"
        case list():
            return [build(entry, name) for entry in value[:1]]
        case int() | float() if not isinstance(value, bool):
            return "number"
        case _:
            return type(value).__name__


@pytest.mark.parametrize("case", GENERATION)
async def test_it_answers_in_the_real_one_s_build(fleet, case):
    await assert_same_build(fleet.first, *GENERATION[case])


@pytest.mark.parametrize("case", POOLING)
async def test_it_answers_in_the_build_of_a_real_one_that_pools(fleet, case):
    await assert_same_build(fleet.embedder, *POOLING[case])


async def assert_same_build(server, route, body):
    async with FakeServer(fake_of(server)) as fake:
        status, content_type, found = await post(fake.url, route, body)
    assert status == 200
    real = await post(server.url, route, body)
    assert (status, content_type, build(found)) == (*real[:2], build(real[2]))


@pytest.mark.parametrize("case", REFUSALS)
async def test_it_refuses_as_the_real_one_does(fleet, case):
    await assert_same_refusal(fleet.first, *REFUSALS[case])


@pytest.mark.parametrize("case", POOLING_REFUSALS)
async def test_it_refuses_as_a_real_one_that_pools_does(fleet, case):
    await assert_same_refusal(fleet.embedder, *POOLING_REFUSALS[case])


async def assert_same_refusal(server, route, body):
    async with FakeServer(fake_of(server)) as fake:
        status, content_type, found = await post(fake.url, route, body)
    assert status >= 400
    assert (status, content_type, faults(found)) == faulty(await post(server.url, route, body))


def faulty(answer):
    status, content_type, body = answer
    return status, content_type, faults(body)


def faults(body):
    """The typed fields, by which a verdict is found: everything but the words."""
    return {**body, "error": {**body["error"], "message": None}} if "error" in body else body


@pytest.mark.parametrize(
    "route", ["/health", "/v1/models", "/version", "/load", "/is_sleeping", "/nowhere", COMPLETIONS]
)
async def test_it_says_of_itself_what_the_real_one_says(fleet, route):
    async with FakeServer(fake_of(fleet.first)) as fake:
        status, found = await get(fake.url, route)
    real_status, real = await get(fleet.first.url, route)
    assert (status, build(found)) == (real_status, build(real))


async def test_its_metrics_have_the_real_ones_names_and_labels(fleet):
    async with FakeServer(fake_of(fleet.first)) as fake, httpx2.AsyncClient(trust_env=False) as client:
        page = (await client.get(f"{fake.url}/metrics")).text
    real, found = scrape(fleet.first.url).labels(), Samples(page).labels()
    assert found.keys() <= real.keys()
    for name in found.keys() - {"vllm:cache_config_info"}:
        assert found[name] == real[name], name
    assert found["vllm:cache_config_info"] <= real["vllm:cache_config_info"]


async def test_the_real_metrics_hold_every_figure_that_steers_load(fleet):
    async with httpx2.AsyncClient(trust_env=False) as client:
        page = (await client.get(f"{fleet.first.url}/metrics")).text
    assert None not in vars_of(read_telemetry(page)).values()


def vars_of(telemetry):
    return {name: getattr(telemetry, name) for name in type(telemetry).__slots__}

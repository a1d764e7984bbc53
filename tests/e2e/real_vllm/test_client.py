"""The client against a real vLLM: options reach its sampler, labels hold, and it says what it is."""

import asyncio
import json
from collections import Counter

import pytest
from real_rows import LABELS, MODEL
from vllm_fleet import CONTEXT_TOKENS, LATE, until

from dispatcher import (
    AsyncVLLMClient,
    ConstraintIgnoredError,
    ErrorCode,
    GenerationOptions,
    RequestFailedError,
    VLLMClient,
)

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

ASK = [{"role": "user", "content": "Tell me of the lazy dog."}]
SAMPLED = GenerationOptions(max_completion_tokens=24, temperature=1, extra_body={"ignore_eos": True})
GREEDY = SAMPLED.replaced(temperature=0)
CHATS = 1000
SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": LABELS}, "sure": {"type": "boolean"}},
    "required": ["label", "sure"],
    "additionalProperties": False,
}


@pytest.fixture
async def client(fleet):
    async with AsyncVLLMClient(fleet.first.url) as client:
        yield client


async def texts(client, options, count=4):
    return [answer.text for answer in await client.batch_generate([ASK] * count, options)]


async def test_greedy_answers_repeat_and_so_do_sampled_ones_with_a_seed(client):
    greedy = set(await texts(client, GREEDY))
    assert len(greedy) == 1
    assert len(set(await texts(client, SAMPLED.replaced(seed=5)))) == 1
    assert len({(await texts(client, SAMPLED.replaced(seed=seed), 1))[0] for seed in range(4)}) == 4
    assert len(set(await texts(client, SAMPLED))) > 1


@pytest.mark.parametrize(
    "narrow",
    [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}],
    ids=lambda narrow: next(iter(narrow)),
)
async def test_an_option_that_leaves_one_token_makes_sampling_greedy(client, narrow):
    [greedy] = set(await texts(client, GREEDY, 1))
    assert set(await texts(client, SAMPLED.replaced(**narrow))) == {greedy}


async def test_penalties_change_what_a_greedy_answer_repeats(client):
    [plain] = await texts(client, GREEDY, 1)
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        [changed] = await texts(client, GREEDY.replaced(**{name: 2.0}), 1)
        assert changed != plain, name


async def test_an_answer_ends_where_it_is_told_to(client):
    whole = await client.generate(ASK, GREEDY.replaced(logprobs=True))
    assert (whole.finish_reason, whole.tokens.completion) == ("length", 24)
    stop = whole.text[5:8]
    stopped = await client.generate(ASK, GREEDY.replaced(stop=stop))
    assert (stopped.text, stopped.finish_reason) == (whole.text[: whole.text.index(stop)], "stop")
    by_id = GREEDY.replaced(extra_body={"ignore_eos": True, "return_token_ids": True})
    ids = (await client.generate(ASK, by_id)).response["choices"][0]["token_ids"]
    ended = await client.generate(ASK, GREEDY.replaced(stop_token_ids=[ids[6]]))
    assert (ended.finish_reason, ended.tokens.completion) == ("stop", ids.index(ids[6]) + 1)


async def test_logprobs_are_those_of_the_tokens_with_the_likeliest_first(client):
    answer = await client.generate(ASK, GREEDY.replaced(logprobs=True, top_logprobs=3))
    assert len(answer.logprobs) == 24
    assert answer.logprobs[0].token
    assert answer.text.startswith(answer.logprobs[0].token)
    for token in answer.logprobs:
        assert [rival.logprob for rival in token.top] == sorted(
            (rival.logprob for rival in token.top), reverse=True
        )
        assert token.top[0].logprob == pytest.approx(token.logprob, abs=1e-4)


async def test_a_schema_is_honoured(client):
    options = GenerationOptions(output_schema=SCHEMA, temperature=1, max_completion_tokens=200)
    for answer in await client.batch_generate([ASK] * 8, options):
        found = json.loads(answer.text)
        assert found.keys() == {"label", "sure"}
        assert found["label"] in LABELS


async def test_a_chats_answer_goes_on_with_what_was_begun(client):
    begun = [*ASK, {"role": "assistant", "content": "The dog"}]
    going_on = GREEDY.replaced(continue_final_message=True)
    tokens = await client.tokenize(begun, options=going_on)
    answer = await client.generate(begun, going_on)
    assert answer.tokens.prompt == tokens.count < (await client.tokenize(begun)).count


async def test_a_chat_returns_only_labels_a_thousand_times_of_a_thousand(client):
    async def label(number):
        options = GenerationOptions(temperature=1, seed=number)
        return (await client.chat(f"Review {number}: it was what it was.", LABELS, options=options)).text

    found = Counter(await asyncio.gather(*(label(number) for number in range(CHATS))))
    assert found.total() == CHATS
    assert found.keys() <= set(LABELS)
    assert len(found) > 1


async def test_labels_that_begin_alike_that_are_not_ascii_and_that_have_quotes_come_whole(client):
    labels = ["yes", "yes, but", 'a "quoted" one', "back\\slash", "élan", "日本", "🙂"]
    options = GenerationOptions(temperature=1)
    found = await asyncio.gather(*(client.chat(f"{n}", labels, options=options) for n in range(60)))
    assert len({answer.text for answer in found}) > 1


async def test_the_older_spelling_is_put_into_the_current_one(client):
    options = GREEDY.replaced(extra_body={"guided_regex": "ab{3}"})
    assert (await client.generate(ASK, options)).text == "abbb"


async def test_the_older_spelling_sent_as_it_is_is_ignored_by_the_server_and_an_error_of_ours(fleet):
    async with AsyncVLLMClient(fleet.first.url, version="0.10.0") as client:
        with pytest.raises(ConstraintIgnoredError):
            await client.chat(ASK, LABELS, options=SAMPLED)


async def test_tokens_come_back_as_the_text_and_count_as_the_prompt_does(client):
    found = await client.tokenize("The lazy dog, déjà vu: 日本 🙂")
    assert await client.detokenize(found.ids) == "The lazy dog, déjà vu: 日本 🙂"
    assert found.max_model_len == CONTEXT_TOKENS
    answer = await client.generate(ASK, GREEDY)
    assert (await client.tokenize(ASK)).count == answer.tokens.prompt
    after = await client.tokenize(" yes", context=ASK)
    assert not after.straddles
    assert await client.detokenize(after.ids) == " yes"


async def test_a_request_that_is_too_long_is_an_error_with_its_code(client):
    with pytest.raises(RequestFailedError) as caught:
        await client.generate("hello " * 2000)
    assert (caught.value.code, caught.value.status, caught.value.attempts) == (
        ErrorCode.CONTEXT_LENGTH,
        400,
        1,
    )
    assert caught.value.request_id


async def test_a_server_says_what_it_is_and_how_busy(client, fleet):
    assert await client.is_healthy()
    version = await client.version()
    assert version
    assert tuple(map(int, version.split(".")[:2])) >= (0, 12)
    first = (await client.models())[0]
    assert (first.id, first.root, first.max_model_len) == (MODEL, str(fleet.first.root), CONTEXT_TOKENS)
    long = GREEDY.replaced(max_completion_tokens=900, extra_body={"ignore_eos": True})
    task = asyncio.create_task(client.batch_generate([ASK] * 60, long, max_in_flight=3))
    load = await client.load()
    async with asyncio.timeout(60):
        while (load.running, load.waiting) != (3, 0) and not task.done():
            await asyncio.sleep(0.05)
            load = await client.load()
    assert not task.done(), task.result()
    assert 0 < load.kv_usage < 1
    task.cancel()
    await asyncio.wait([task])
    await asyncio.to_thread(until, fleet.first.idle, 30, "aborted")


async def test_thousands_can_be_open_at_once(client):
    answers = await client.batch_generate(
        [f"Row {number}." for number in range(1500)],
        GenerationOptions(max_completion_tokens=1),
        max_in_flight=1500,
    )
    assert all(answer.ok and answer.attempts == 1 for answer in answers)


async def test_scores_and_distributions_are_a_call_each(client):
    scored = await client.score(ASK, "positive")
    assert "".join(token.text for token in scored.tokens) == "positive"
    found = await client.classify("It was fine.", LABELS)
    assert found.probabilities.keys() == set(LABELS)
    assert sum(found.probabilities.values()) == pytest.approx(1)


async def test_a_name_that_is_an_alias_is_answered_under_the_first_one_and_counts(fleet):
    async with AsyncVLLMClient(fleet.first.url, model=LATE) as client:
        answer = await client.generate(ASK, GREEDY)
    assert (answer.model, answer.attempts) == (MODEL, 1)


def test_blocking_code_gets_the_same_answers(fleet):
    with VLLMClient(fleet.first.url) as client:
        answers = client.batch_generate([ASK, ASK], GREEDY)
        assert answers[0].text == answers[1].text == client.generate(ASK, GREEDY).text
        assert client.chat(ASK, LABELS).text in LABELS

"""The client over real HTTP, against fake servers of several versions."""

import asyncio
import json
from contextlib import asynccontextmanager

import msgspec
import pytest
import structlog
from aiohttp import web
from commands import until
from openai import AsyncOpenAI

from dispatcher import (
    AsyncVLLMClient,
    ConfigError,
    ConstraintIgnoredError,
    ErrorCode,
    GenerationOptions,
    InputError,
    RequestFailedError,
    VLLMClient,
)
from dispatcher.model import ServerId, ServerSpec
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.faults import Drop, Hang, Match, Respond, Spoil, Spoilage
from dispatcher.testing.presets import PRESETS

LABELS = ["positive", "negative", "neutral"]
FEW = GenerationOptions(max_completion_tokens=4)


@pytest.fixture
async def client(server):
    async with AsyncVLLMClient(server.url) as opened:
        yield opened


# --- answers ---


async def test_a_text_is_answered_by_a_model_that_was_not_named(client, server):
    answer = await client.generate("hello", FEW)
    assert len(answer.text.split()) == 4
    assert (answer.finish_reason, answer.tokens.completion, answer.model) == ("length", 4, "fake-model")
    assert (answer.server, answer.attempts, answer.error) == (server.url, 1, None)
    assert answer.response["id"] == f"chatcmpl-{answer.request_id}"
    assert server.requests[0].request_id == answer.request_id


async def test_equal_requests_get_equal_answers_and_options_matter(client):
    first, again = [await client.generate("hello", GenerationOptions(seed=1)) for _ in range(2)]
    other = await client.generate("hello", GenerationOptions(seed=2))
    assert first.text == again.text != other.text


async def test_logprobs_come_with_as_many_rivals_as_were_asked_for(client):
    answer = await client.generate("hello", FEW.replaced(logprobs=True, top_logprobs=3))
    assert "".join(token.token for token in answer.logprobs) == answer.text
    assert [len(token.top) for token in answer.logprobs] == [3, 3, 3, 3]
    assert all(token.top[0].logprob == token.logprob < 0 for token in answer.logprobs)


class Review(msgspec.Struct):
    mood: str
    stars: int


async def test_a_schema_is_honoured(client):
    answer = await client.generate("hello", GenerationOptions(output_schema=Review))
    assert isinstance(msgspec.json.decode(answer.text, type=Review), Review)


@asynccontextmanager
async def recording():
    """A server that answers everything with one answer and keeps what it was sent."""
    seen = []

    async def answer(request):
        seen.append((request.headers.copy(), await request.json()))
        message = {"role": "assistant", "content": "yes"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(
            {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        )

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    finally:
        await runner.cleanup()


async def test_the_openai_sdk_sends_the_same_body_from_the_two_parts():
    options = GenerationOptions(
        temperature=0,
        stop=["x"],
        top_k=3,
        output_schema=Review,
        chat_template_kwargs={"a": 1},
        extra_body={"min_tokens": 2},
    )
    messages = [{"role": "user", "content": "hello"}]
    async with (
        recording() as (url, seen),
        AsyncVLLMClient(url, model="m", api_key="key-1", headers={"X-Team": "us"}) as client,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="key-1", max_retries=0) as sdk,
    ):
        assert (await client.generate(messages, options)).text == "yes"
        typed, rest = options.split_payload()
        await sdk.chat.completions.create(model="m", messages=messages, **typed, extra_body=rest)
    (headers, ours), (_, theirs) = seen
    assert ours == theirs
    assert (headers["Authorization"], headers["X-Team"]) == ("Bearer key-1", "us")


async def test_more_than_one_choice_is_an_error_even_where_nobody_asked_for_it(client, server):
    body = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}] * 2}
    server.inject(Respond(200, json.dumps(body)))
    with pytest.raises(RequestFailedError, match="2 choices"):
        await client.generate("hello")


# --- many ---


async def test_a_batch_is_answered_in_input_order_however_the_servers_take_them(serve):
    engine = EngineSettings(max_sequences=4, decode_step_s=0.001)
    servers = [await serve(engine=engine, answer_tokens=8) for _ in range(2)]
    texts = [f"row-{number}" for number in range(60)]
    async with AsyncVLLMClient([server.url for server in servers]) as client:
        answers = await client.batch_generate(texts, max_in_flight=16)
        alone = [await client.generate(text) for text in texts[:5]]
    assert [answer.text for answer in answers[:5]] == [answer.text for answer in alone]
    assert len(answers) == 60
    assert {answer.server for answer in answers} == {server.url for server in servers}
    assert all(1 < server.peak_in_flight <= 8 for server in servers)


async def test_a_failed_one_has_its_own_error_or_ends_all_as_is_wished(client, server):
    server.inject(PRESETS["context_length_400"], Match(text="row-3"))
    texts = [f"row-{number}" for number in range(6)]
    answers = await client.batch_generate(texts, FEW, on_error="ignore")
    assert [answer.ok for answer in answers] == [True, True, True, False, True, True]
    assert (answers[3].error.code, answers[3].error.status) == (ErrorCode.CONTEXT_LENGTH, 400)
    with structlog.testing.capture_logs() as logs:
        await client.batch_generate([*texts, [{"no": "role"}]], FEW, on_error="warn")
    told = {log.get("code") or log["kind"]: log for log in logs}
    assert told.keys() == {"context_length", "InputError"}
    assert told["context_length"]["server"] == server.url
    assert "tokens" not in str(logs)  # the server's words can repeat the prompt
    with pytest.raises(RequestFailedError, match="context_length"):
        await client.batch_generate(texts, FEW)


async def test_one_text_is_no_batch_and_a_batch_has_a_limit(client):
    with pytest.raises(InputError, match="list"):
        await client.batch_generate("hello")
    with pytest.raises(ConfigError, match="max_in_flight"):
        await client.batch_generate(["hello"], max_in_flight=0)
    with pytest.raises(ConfigError, match="on_error: must be one of raise, warn, ignore"):
        await client.batch_generate(["hello"], on_error="silent")
    with pytest.raises(ConfigError, match="on_error"):
        await client.generate("hello", on_error="silent")
    assert await client.batch_generate([]) == []


async def test_a_batch_that_is_cancelled_leaves_nothing_open(client, server):
    server.inject(Hang())
    task = asyncio.create_task(client.batch_generate(["hello"] * 20, max_in_flight=7))
    await until(lambda: server.in_flight == 7)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: server.in_flight == 0)


# --- servers ---


async def test_a_server_that_is_not_there_costs_an_answer_nothing(serve):
    server, gone = await serve(), await serve()
    await gone.stop_listening()
    async with AsyncVLLMClient([gone.url, server.url], model="fake-model") as client:
        answers = await client.batch_generate(["hello"] * 20, max_in_flight=4)
    assert {answer.server for answer in answers} == {server.url}
    assert max(answer.attempts for answer in answers) == 2


async def test_where_no_server_answers_the_error_says_so_soon(server):
    await server.stop_listening()
    async with AsyncVLLMClient(server.url, model="fake-model") as client:
        with pytest.raises(RequestFailedError, match="nobody accepts connections") as caught:
            await asyncio.wait_for(client.generate("hello"), 10)
        assert (caught.value.attempts, caught.value.server) == (3, server.url)
        await server.listen()
        assert (await client.generate("hello", FEW)).ok
    await server.stop_listening()
    async with AsyncVLLMClient(server.url) as client:
        with pytest.raises(RequestFailedError, match="nobody accepts connections"):
            await client.generate("hello")


async def test_a_server_that_is_not_there_costs_a_constrained_answer_nothing(serve):
    server, gone = await serve(), await serve()
    await gone.stop_listening()
    bound = GenerationOptions(extra_body={"structured_outputs": {"regex": "ab+"}})
    async with AsyncVLLMClient([gone.url, server.url]) as client:
        assert [(await client.chat("review", LABELS)).server for _ in range(3)] == [server.url] * 3
        assert [(await client.generate("x", bound)).server for _ in range(3)] == [server.url] * 3


async def test_a_server_that_lists_no_models_is_asked_for_its_own(server):
    server.inject(Respond(404, ""), Match(route="/v1/models"))
    async with AsyncVLLMClient(server.url) as client:
        assert await client.models() == []
        assert (await client.generate("hello")).model == "fake-model"


async def test_broken_answers_are_asked_for_again(client, server):
    server.inject(Spoil(Spoilage.CUT), times=1)
    assert (await client.generate("hello")).attempts == 2
    server.inject(Drop(), Match(reused=True), times=1)
    assert (await client.generate("hello")).attempts == 2
    server.inject(Respond(429, "{}"), times=1)
    assert (await client.generate("hello")).attempts == 2


async def test_a_request_has_the_time_it_was_given_for_each_send(server):
    server.inject(Hang())
    async with AsyncVLLMClient(server.url, timeout_s=0.05, max_attempts=2) as client:
        with pytest.raises(RequestFailedError) as caught:
            await client.generate("hello")
    assert (caught.value.code, caught.value.attempts) == (ErrorCode.TIMEOUT, 2)


async def test_a_refused_key_is_an_error_that_does_not_repeat_it(serve):
    server = await serve(api_key="right")
    async with AsyncVLLMClient(server.url, api_key="wrong-key") as client:
        with pytest.raises(RequestFailedError, match="credentials") as caught:
            await client.generate("hello")
    assert caught.value.attempts == 1
    assert "wrong-key" not in str(caught.value)
    async with AsyncVLLMClient(server.url, api_key="right") as client:
        assert (await client.generate("hello")).ok


class Turns:
    """Servers from elsewhere: a pool's, say."""

    def __init__(self, *urls):
        self.specs = [ServerSpec(ServerId(url), url) for url in urls]
        self.events = []

    def listed(self):
        return self.specs

    async def take(self, avoid):
        self.events.append("take")
        return next(spec for spec in self.specs if spec.id not in avoid)

    def give_back(self, server, verdict):
        assert server in self.specs
        self.events.append(str(verdict))


async def test_servers_can_come_from_an_object_that_chooses_them(serve):
    first, second = await serve(), await serve()
    first.inject(PRESETS["engine_core_500"])
    turns = Turns(first.url, second.url)
    async with AsyncVLLMClient(turns) as client:
        assert (await client.generate("hello")).server == second.url
    assert turns.events == ["take", "server_fault", "take", "success"]
    with pytest.raises(ConfigError, match="of their own"):
        AsyncVLLMClient(turns, api_key="key")


# --- labels ---


@pytest.mark.parametrize("version", ["0.6.3", "0.10.2", "0.11.0", "0.12.0", "0.32.0"])
async def test_only_labels_are_answered_by_servers_of_every_version(serve, version):
    server = await serve(version=version)
    async with AsyncVLLMClient(server.url) as client:
        answers = await asyncio.gather(*(client.chat(f"review {number}", LABELS) for number in range(30)))
    assert {answer.text for answer in answers} == set(LABELS)


async def test_servers_of_two_versions_are_each_asked_in_their_own_spelling(serve):
    old, new = await serve(version="0.9.2"), await serve(version="0.32.0")
    async with AsyncVLLMClient([old.url, new.url]) as client:
        answers = await asyncio.gather(*(client.chat(f"review {number}", LABELS) for number in range(30)))
        assert await client.version() == "0.9.2"
        assert await client.version(new.url) == "0.32.0"
    assert {answer.server for answer in answers} == {old.url, new.url}
    assert {answer.text for answer in answers} == set(LABELS)


@pytest.mark.parametrize(("version", "believed"), [("0.10.2", "0.32.0"), ("0.32.0", "0.10.2")])
async def test_every_constrained_call_to_a_server_that_ignores_constraints_is_an_error(
    serve, version, believed
):
    server = await serve(version=version)
    async with AsyncVLLMClient(server.url, version=believed) as client:
        for number in range(20):
            with pytest.raises(ConstraintIgnoredError, match="ignores the constraint"):
                await client.chat(f"review {number}", LABELS)


async def test_a_version_that_tells_nothing_is_held_to_its_answers(serve):
    server = await serve(version="unknown")
    async with AsyncVLLMClient(server.url) as client:
        assert (await client.chat("review", LABELS)).text in LABELS
        with pytest.raises(ConstraintIgnoredError, match="version="):
            await client.generate("review", GenerationOptions(extra_body={"guided_regex": "a+"}))


@pytest.mark.parametrize("version", ["0.10.2", "0.11.0", "0.32.0"])
@pytest.mark.parametrize(
    "constraint",
    [{"guided_regex": "ab+"}, {"structured_outputs": {"regex": "ab+"}}],
    ids=lambda c: next(iter(c)),
)
async def test_a_users_own_constraint_holds_in_either_spelling(serve, version, constraint):
    server = await serve(version=version)
    async with AsyncVLLMClient(server.url) as client:
        answer = await client.generate("hello", GenerationOptions(extra_body=constraint))
        posted = await client.post("/v1/completions", {"prompt": "hello", **constraint})
    assert set(answer.text) == {"a", "b"}
    assert set(posted["choices"][0]["text"]) == {"a", "b"}


async def test_a_server_that_was_replaced_by_a_newer_one_is_asked_anew(serve):
    server = await serve(version="0.10.2")
    async with AsyncVLLMClient(server.url) as client:
        assert (await client.chat("review", LABELS)).text in LABELS
        port = server.port
        await server.__aexit__()
        newer = await serve(version="0.32.0", port=port)
        with pytest.raises(ConstraintIgnoredError):
            await client.chat("review", LABELS)
        assert (await client.chat("review", LABELS)).text in LABELS
        assert newer.requests


async def test_a_label_comes_with_its_masked_logprobs(client):
    answer = await client.chat("review", LABELS, logprobs=True, top_logprobs=20)
    assert answer.text in LABELS
    assert any(rival.logprob == -9999.0 for token in answer.logprobs for rival in token.top)


async def test_labels_are_the_only_constraint_and_are_checked_before_anything_is_sent(client, server):
    for options in (
        GenerationOptions(output_schema={"type": "object"}),
        GenerationOptions(extra_body={"structured_outputs": {"regex": "a"}}),
    ):
        with pytest.raises(ConfigError, match="only constraint"):
            await client.chat("review", LABELS, options=options)
    with pytest.raises(ConfigError, match="labels"):
        await client.chat("review", [])
    assert not server.requests


async def test_a_label_that_was_cut_short_is_an_error(client):
    with pytest.raises(ConstraintIgnoredError, match="no tokens left"):
        await client.chat("review", LABELS, options=GenerationOptions(max_completion_tokens=1))


async def test_a_chat_without_labels_is_free(client):
    assert (await client.chat("hello", options=FEW)).text == (await client.generate("hello", FEW)).text


# --- tokens, and what servers say of themselves ---


async def test_tokens_of_texts_and_messages_and_back(client):
    found = await client.tokenize("hello world")
    assert (found.strings, found.count, found.max_model_len) == (("hell", "o", " worl", "d"), 4, 8192)
    assert await client.detokenize(found.ids) == "hello world"
    messages = await client.tokenize([{"role": "user", "content": "hello"}])
    assert "".join(messages.strings) == "<|user|>\nhello\n<|assistant|>\n"
    left_open = await client.tokenize(
        [{"role": "user", "content": "hello"}], options=GenerationOptions(continue_final_message=True)
    )
    assert "".join(left_open.strings) == "<|user|>\nhello"


async def test_tokens_after_a_context_are_those_that_the_text_has_there(client):
    answered = await client.tokenize("yes", context=[{"role": "user", "content": "hello"}])
    assert (answered.strings, answered.straddles) == (("yes",), False)
    assert answered == await client.tokenize("yes", context="<|user|>\nhello\n<|assistant|>\n")
    straddling = await client.tokenize("ld", context="hello wor")
    assert (straddling.strings, straddling.straddles) == ((" worl", "d"), True)


async def test_servers_say_how_they_are(serve):
    first, second = await serve(adapters=("tuned",)), await serve(max_model_len=4096, version="0.11.0")
    async with AsyncVLLMClient([first.url, second.url]) as client:
        assert client.servers == [first.url, second.url]
        assert await client.is_healthy()
        listed = [(model.id, model.parent, model.max_model_len) for model in await client.models()]
        assert listed == [("fake-model", None, 8192), ("tuned", "fake-model", 8192)]
        assert [model.max_model_len for model in await client.models(second.url)] == [4096]
        assert await client.version() == "0.11.0"
        load = await client.load()
        assert (load.running, load.waiting, load.kv_usage) == (0, 0, 0)
        await first.stop_listening()
        assert await client.is_healthy()
        assert not await client.is_healthy(first.url)
        assert (await client.load(first.url)).running is None
        with pytest.raises(ConfigError, match="must be one of"):
            await client.version("http://elsewhere:1")


async def test_load_counts_what_runs_and_waits(serve):
    server = await serve(engine=EngineSettings(max_sequences=2, decode_step_s=0.05), answer_tokens=400)
    async with AsyncVLLMClient(server.url) as client:
        task = asyncio.create_task(client.batch_generate(["hello"] * 5, GenerationOptions(seed=1)))
        await until(lambda: server.in_flight == 5)
        load = await client.load()
        assert (load.running, load.waiting) == (2, 3)
        assert 0 < load.kv_usage < 1
        task.cancel()
        await asyncio.wait([task])


async def test_any_route_can_be_posted_to_with_the_clients_model(client):
    answer = await client.post("/v1/embeddings", {"input": "hello"})
    assert len(answer["data"][0]["embedding"]) == 8
    with pytest.raises(RequestFailedError, match="does not exist") as caught:
        await client.post("/v1/embeddings", {"input": "hello", "model": "other"})
    assert caught.value.code == ErrorCode.MODEL_NOT_FOUND


def test_every_fault_of_the_arguments_is_named_at_once():
    with pytest.raises(ConfigError) as caught:
        AsyncVLLMClient("http://a:1", model="", timeout_s=0, max_attempts=0)
    assert [fault.where for fault in caught.value.faults] == ["model", "timeout_s", "max_attempts"]


async def test_a_client_outside_of_its_context_says_what_to_do(server):
    client = AsyncVLLMClient(server.url)
    for call in (client.generate("hello"), client.version(), client.tokenize("hello")):
        with pytest.raises(RuntimeError, match="async with"):
            await call


async def test_completions_are_scored_after_messages_and_after_texts(client):
    ask = [{"role": "user", "content": "hello"}]
    scored = await client.score(ask, "yes indeed")
    assert "".join(token.text for token in scored.tokens) == "yes indeed"
    as_text = await client.score("<|user|>\nhello\n<|assistant|>\n", "yes indeed")
    assert as_text.total == pytest.approx(scored.total)
    assert scored.total < 0


@pytest.mark.parametrize("mode", ["one_call", "exact"])
async def test_labels_get_probabilities(client, mode):
    found = await client.classify("it was good", {"positive": "praise", "negative": "complaint"}, mode)
    assert found.mode == mode
    assert found.probabilities.keys() == {"positive", "negative"}
    assert sum(found.probabilities.values()) == pytest.approx(1)
    assert found.probabilities[found.label] == max(found.probabilities.values())


# --- the blocking face ---


async def test_blocking_code_can_do_the_same(server):
    def script():
        with VLLMClient(server.url) as client:
            answers = client.batch_generate(["a", "b"], FEW)
            return (
                [answer.ok for answer in answers],
                client.chat("review", LABELS).text,
                client.detokenize(client.tokenize("hello").ids),
                client.version(),
                client.is_healthy(),
                client.models()[0].id,
                client.load().running,
                client.post("/v1/embeddings", {"input": "x"})["object"],
                client.generate("hello", FEW).finish_reason,
                client.servers,
            )

    oks, label, *rest = await asyncio.to_thread(script)
    assert oks == [True, True]
    assert label in LABELS
    assert rest == ["hello", "0.32.0", True, "fake-model", 0, "list", "length", [server.url]]

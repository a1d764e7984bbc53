"""The `openai` package, blocking and async, on the whole path: files, batches, live requests, refusals."""

import asyncio
import json
import time

import openai
import pytest
from jobs import CHAT, lines, rows
from keyed_service import ADMIN, METERED, OTHER, USER, keyed
from services import serving

from dispatcher.testing import EngineSettings

ASK = [{"role": "user", "content": "What is it?"}]
SLOW = EngineSettings(max_sequences=8, decode_step_s=0.01)


async def test_the_blocking_sdk_goes_the_whole_path(tmp_path, serve):
    server = await serve(engine=SLOW, answer_tokens=8)
    async with serving(tmp_path / "data", server) as stage:
        with openai.OpenAI(base_url=f"{stage.url}/v1", api_key="none", max_retries=0) as client:
            await asyncio.to_thread(whole_path, client)


def whole_path(client):
    file = client.files.create(file=("in.jsonl", lines(rows(30)).encode()), purpose="batch")
    first, *_ = batches = [submitted(client, file.id) for _ in range(3)]
    assert [found.id for found in client.batches.list(limit=1)] == [batch.id for batch in batches[::-1]]
    ended = when(client, first, "completed")
    assert (ended.request_counts.completed, ended.request_counts.failed) == (30, 0)
    answers = client.files.content(ended.output_file_id).text.splitlines()
    assert [json.loads(line)["custom_id"] for line in answers] == [f"row-{n:05}" for n in range(30)]
    assert len([made.id for made in client.files.list(limit=1)]) >= 2

    long = submitted(client, file.id, extra_body={"limit": 1})
    when(client, long, "in_progress")
    assert client.batches.cancel(long.id).status in ("cancelling", "cancelled")
    ended = when(client, long, "cancelled")
    codes = [
        json.loads(line)["error"]["code"] for line in client.files.content(ended.error_file_id).iter_lines()
    ]
    assert set(codes) == {"batch_cancelled"}
    assert len(codes) + ended.request_counts.completed == 30
    assert client.files.delete(file.id).deleted

    assert [model.id for model in client.models.list()] == ["fake-model"]
    chat = {"model": "fake-model", "messages": ASK}
    whole = client.chat.completions.create(**chat, seed=1, temperature=0).choices[0].message.content
    with client.chat.completions.create(**chat, seed=1, temperature=0, stream=True) as stream:
        chunks = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert len(chunks) > 2
    assert whole
    embedded = client.embeddings.create(model="fake-model", input=["a", "b"])
    assert [each.index for each in embedded.data] == [0, 1]
    assert len({len(each.embedding) for each in embedded.data}) == 1


def submitted(client, file_id, **options):
    return client.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h", **options)


def when(client, batch, status):
    deadline = time.monotonic() + 20
    while (found := client.batches.retrieve(batch.id)).status != status:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


BATCH = {"endpoint": CHAT, "completion_window": "24h"}
REFUSALS = {
    openai.AuthenticationError: ("nobody's", lambda client: client.models.list()),
    openai.PermissionDeniedError: (
        USER,
        lambda client: client.post("/../servers", body={"url": "http://127.0.0.1:9"}, cast_to=object),
    ),
    openai.NotFoundError: (USER, lambda client: client.batches.retrieve("batch_none")),
    openai.BadRequestError: (
        USER,
        lambda client: client.batches.create(**BATCH, input_file_id="file-none"),
    ),
    openai.InternalServerError: (
        USER,
        lambda client: client.chat.completions.create(model="m", messages=ASK),
    ),
}


@pytest.mark.parametrize("kind", REFUSALS)
async def test_a_refusal_is_the_sdks_own_exception(tmp_path, kind):
    key, ask = REFUSALS[kind]
    async with keyed(tmp_path / "data") as asking:
        base_url = f"{asking.url}/v1"
        with (
            openai.OpenAI(base_url=base_url, api_key=key, max_retries=0) as client,
            pytest.raises(kind) as one,
        ):
            await asyncio.to_thread(ask, client)
        async with openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as client:
            with pytest.raises(kind) as other:
                await ask(client)
    for refused in (one.value, other.value):
        assert refused.body["message"]
        assert refused.type == refused.body["type"]


async def test_what_a_key_may_not_have_more_of_is_a_rate_limit_and_a_lost_move_a_conflict(tmp_path):
    async with keyed(tmp_path / "data") as asking:
        clients = {
            key: openai.AsyncOpenAI(base_url=f"{asking.url}/v1", api_key=key, max_retries=0)
            for key in (ADMIN, OTHER, METERED)
        }
        for _ in range(2):
            with pytest.raises(openai.InternalServerError):  # there is no server
                await clients[METERED].chat.completions.create(model="m", messages=ASK)
        with pytest.raises(openai.RateLimitError) as refused:
            await clients[METERED].chat.completions.create(model="m", messages=ASK)
        assert int(refused.value.response.headers["Retry-After"]) > 0
        other = clients[OTHER]
        file = await other.files.create(file=("in.jsonl", lines(rows(3)).encode()), purpose="batch")
        batch = await other.batches.create(**BATCH, input_file_id=file.id)
        with pytest.raises(openai.RateLimitError) as refused:
            await other.batches.create(**BATCH, input_file_id=file.id)
        assert refused.value.code == "open_jobs_exceeded"
        empty = await clients[ADMIN].files.create(file=("in.jsonl", b"{}"), purpose="batch")
        failed = await clients[ADMIN].batches.create(**BATCH, input_file_id=empty.id)
        async with asyncio.timeout(10):
            while (await clients[ADMIN].batches.retrieve(failed.id)).status != "failed":  # noqa: ASYNC110  # polled
                await asyncio.sleep(0.02)
        with pytest.raises(openai.ConflictError):
            await clients[ADMIN].batches.cancel(failed.id)
        assert (await clients[ADMIN].batches.cancel(batch.id)).status in ("cancelling", "cancelled")
        for client in clients.values():
            await client.close()

"""Files and Batches as the unmodified `openai` SDK uses them, and the life of a job behind them."""

import asyncio
import time

import openai
import pytest
from commands import until
from jobs import CHAT, row, rows, sends
from services import serving

from dispatcher.errors import StorageError
from dispatcher.jobs.threads import Paperwork
from dispatcher.results.verify import verify
from dispatcher.testing import EngineSettings, Match, Respond
from dispatcher.testing.faults import Slow

SLOW = EngineSettings(max_sequences=8, decode_step_s=0.01)
BAD = '{"error": {"message": "no", "type": "BadRequestError", "param": "messages", "code": 400}}'


@pytest.fixture
async def stage(tmp_path, server):
    async with serving(tmp_path / "data", server) as stage:
        yield stage


@pytest.fixture
async def slow_stage(tmp_path, serve):
    async with serving(tmp_path / "data", await serve(engine=SLOW, answer_tokens=16)) as stage:
        yield stage


# Files


async def test_a_file_goes_in_and_comes_out_as_it_was(stage):
    content = b'{"a": 1}\r\n' * 300_000
    file = await stage.upload(content)
    assert (file.bytes, file.filename, file.purpose) == (len(content), "in.jsonl", "batch")
    assert (file.object, file.status, file.expires_at) == ("file", "processed", None)
    assert await stage.sdk.files.retrieve(file.id) == file
    assert (await stage.sdk.files.content(file.id)).content == content


async def test_a_range_of_a_files_bytes_can_be_had(stage):
    file = await stage.upload(b"0123456789")
    found = await stage.sdk.files.content(file.id, extra_headers={"Range": "bytes=3-5"})
    assert (found.response.status_code, found.content) == (206, b"345")


async def test_a_deleted_file_is_gone_with_its_bytes(stage, tmp_path):
    file = await stage.upload(b"x")
    assert (tmp_path / "data/files" / file.id).exists()
    deleted = await stage.sdk.files.delete(file.id)
    assert (deleted.id, deleted.deleted) == (file.id, True)
    with pytest.raises(openai.NotFoundError):
        await stage.sdk.files.retrieve(file.id)
    assert list((tmp_path / "data/files").iterdir()) == []


async def test_files_are_paged_through_in_either_order(stage):
    ids = [(await stage.upload(b"x")).id for _ in range(7)]
    assert [file.id async for file in stage.sdk.files.list(limit=3)] == ids[::-1]
    assert [file.id async for file in stage.sdk.files.list(limit=3, order="asc")] == ids
    assert [file.id async for file in stage.sdk.files.list(purpose="batch_output")] == []


async def test_a_file_expires_when_it_was_said_to(stage):
    file = await stage.upload(b"x", expires_after={"anchor": "created_at", "seconds": 3600})
    assert file.expires_at == file.created_at + 3600


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"purpose": "fine-tune"}, "purpose"),
        ({"purpose": "batch", "expires_after": {"anchor": "x", "seconds": 3600}}, "expires_after.anchor"),
        (
            {"purpose": "batch", "expires_after": {"anchor": "created_at", "seconds": 3}},
            "expires_after.seconds",
        ),
    ],
)
async def test_an_upload_that_asks_for_what_there_is_not_is_refused_and_leaves_nothing(
    stage, tmp_path, options, param
):
    with pytest.raises(openai.BadRequestError) as refused:
        await stage.sdk.files.create(file=("in.jsonl", b"x"), **options)
    assert refused.value.param == param
    assert list((tmp_path / "data/files").iterdir()) == []


async def test_an_upload_above_the_limit_is_refused_and_leaves_nothing(tmp_path, server):
    async with serving(tmp_path / "data", server, api={"port": 0, "upload_bytes_max": 1000}) as stage:
        assert (await stage.upload(b"x" * 1000)).bytes == 1000
        with pytest.raises(openai.APIStatusError) as refused:
            await stage.upload(b"x" * 1001)
        assert refused.value.status_code == 413
        assert len(list((tmp_path / "data/files").iterdir())) == 1


PART = b"--b\r\nContent-Disposition: form-data; name=%b\r\n\r\n"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b\r\n",
        b"nonsense",
        b"--b\r\nContent-Disposition: form-data\r\n\r\n",
        PART % b'"\x18"' + b"x\r\n--b--\r\n",
        PART % b'"file"; filename="\xff\x00"' + b"x\r\n--b--\r\n",
        PART % b"_charset_" + b"x" * 40 + b"\r\n--b--\r\n",
        b"--b\r\nContent-Length: x\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\n" + b"X-A: b\r\n" * 200 + b"\r\nx\r\n--b--\r\n",
        b"--b\r\nX-A: " + b"b" * 100_000 + b"\r\n\r\nx\r\n--b--\r\n",
        b"x" * 200_000,
    ],
)
async def test_a_malformed_form_is_refused(stage, body):
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    status, answered = await stage.ask("POST", "/v1/files", data=body, headers=headers)
    assert (status, answered["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("given", "kept"),
    [(b"pr\xfcfung", "pr\ufffdfung"), ("prüfung".encode(), "prüfung"), (b"\xed\xa0\x80", "\ufffd" * 3)],
)
async def test_a_files_name_is_kept_as_far_as_it_is_text(stage, given, kept):
    head = PART % (b'"file"; filename="%b"' % given)
    body = b"%bx\r\n%bbatch\r\n--b--\r\n" % (head, PART % b'"purpose"')
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    status, answered = await stage.ask("POST", "/v1/files", data=body, headers=headers)
    assert (status, answered["filename"]) == (200, kept)


async def test_an_upload_that_breaks_off_leaves_nothing(stage, tmp_path, capfd):
    host, port = stage.service.address
    _, writer = await asyncio.open_connection(host, port)
    head = "POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999999\r\n"
    part = '--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
    form = f"Content-Type: multipart/form-data; boundary=b\r\n\r\n{part}"
    writer.write((head + form).encode() + b"x" * 3_000_000)
    await writer.drain()
    folder = tmp_path / "data/files"
    await until(lambda: any(path.stat().st_size > 1_000_000 for path in folder.iterdir()), 10)
    writer.transport.abort()
    await until(lambda: not list(folder.iterdir()), 10)
    assert "request_failed" not in capfd.readouterr().out


@pytest.mark.parametrize("limit", ["0", "-1", "x", "10001", "1e3"])
async def test_a_limit_that_is_none_is_refused(stage, limit):
    status, answered = await stage.ask("GET", f"/v1/files?limit={limit}")
    assert (status, answered["error"]["param"]) == (400, "limit")


async def test_a_files_id_cannot_lead_out_of_the_storage(stage):
    for name in ("..%2f..%2fqueue.sqlite", "file-x", "%00", "."):
        status, _ = await stage.ask("GET", f"/v1/files/{name}/content")
        assert status in (400, 404)


# Batches, to the end


async def test_a_batch_runs_to_its_end(stage, server, tmp_path):
    server.inject(Respond(400, BAD), Match(text="row-00007"))
    batch = await stage.submit(rows(100), metadata={"team": "x"})
    assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", CHAT)
    assert (batch.completion_window, batch.metadata) == ("24h", {"team": "x"})
    assert batch.expires_at - batch.created_at == 86_400
    ended = await stage.until_ended(batch)
    assert ended.status == "completed"
    counts = ended.request_counts
    assert (counts.total, counts.completed, counts.failed) == (100, 99, 1)
    assert ended.model == "fake-model"
    assert ended.created_at <= ended.in_progress_at <= ended.finalizing_at <= ended.completed_at
    assert (ended.failed_at, ended.cancelling_at, ended.cancelled_at, ended.expired_at) == (None,) * 4
    output = await stage.lines(ended.output_file_id)
    assert [line["custom_id"] for line in output] == [f"row-{n:05}" for n in range(100) if n != 7]
    assert ended.usage.output_tokens == sum(
        line["response"]["body"]["usage"]["completion_tokens"] for line in output
    )
    (failed,) = await stage.lines(ended.error_file_id)
    assert (failed["custom_id"], failed["error"]["code"]) == ("row-00007", "invalid_request")
    files = {name: tmp_path / "data/files" / name for name in (ended.output_file_id, ended.error_file_id)}
    report = verify(tmp_path / "data/inputs" / batch.id, *files.values(), work_dir=tmp_path)
    assert report.ok
    made = await stage.sdk.files.retrieve(ended.output_file_id)
    assert (made.purpose, made.filename) == ("batch_output", f"{batch.id}_output.jsonl")


async def test_a_batch_without_failures_has_no_error_file_and_one_without_successes_no_output(stage, server):
    ended = await stage.until_ended(await stage.submit(rows(3)))
    assert ended.output_file_id
    assert ended.error_file_id is None
    server.inject(Respond(400, BAD))
    ended = await stage.until_ended(await stage.submit(rows(3)))
    assert ended.status == "completed"
    assert ended.output_file_id is None
    assert set((await stage.outcomes(ended)).values()) == {"invalid_request"}


async def test_the_input_may_be_deleted_while_the_batch_runs(slow_stage):
    batch = await slow_stage.submit(rows(60))
    await slow_stage.sdk.files.delete(batch.input_file_id)
    ended = await slow_stage.until_ended(batch)
    assert (ended.status, ended.request_counts.completed) == ("completed", 60)


async def test_counts_grow_while_it_runs_and_never_shrink(slow_stage):
    batch = await slow_stage.submit(rows(120))
    seen = []

    def ended(found):
        seen.append(found.request_counts.completed)
        return found.status == "completed"

    await slow_stage.until(batch, ended)
    assert seen == sorted(seen)
    assert len(set(seen)) > 3


async def test_the_model_of_the_batch_stands_in_for_one_that_a_row_lacks(stage):
    batch = await stage.submit([row(0, model=None)], extra_body={"model": "fake-model"})
    ended = await stage.until_ended(batch)
    assert (ended.status, ended.model) == ("completed", "fake-model")


async def test_other_routes_make_batches_too(stage):
    requests = [row(n, "/v1/embeddings") for n in range(5)]
    ended = await stage.until_ended(await stage.submit(requests, endpoint="/v1/embeddings"))
    assert (ended.status, ended.request_counts.completed) == ("completed", 5)


async def test_batches_are_paged_through_the_latest_first(stage):
    ids = [(await stage.submit(rows(1))).id for _ in range(5)]
    assert [batch.id async for batch in stage.sdk.batches.list(limit=2)] == ids[::-1]


def test_the_blocking_sdk_gets_the_same(tmp_path):
    async def main():
        async with serving(tmp_path / "data") as stage:
            client = openai.OpenAI(base_url=f"{stage.url}/v1", api_key="none", max_retries=0)
            await asyncio.to_thread(blocking, client)

    def blocking(client):
        with client:
            file = client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
            batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
            assert [found.id for found in client.batches.list()] == [batch.id]
            assert [found.id for found in client.files.list()] == [file.id]
            deadline = time.monotonic() + 10
            while (found := client.batches.retrieve(batch.id)).status != "failed":
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert found.errors.data[0].line == 1

    asyncio.run(main())


# Validation


async def test_an_input_that_is_not_valid_fails_the_batch_with_the_lines(stage, server):
    requests = rows(5)
    requests[1]["url"] = "/v1/completions"
    requests[2] = {"custom_id": "x"}
    requests[4]["custom_id"] = "row-00000"
    ended = await stage.until_ended(await stage.submit(requests))
    assert (ended.status, ended.errors.object) == ("failed", "list")
    assert ended.failed_at >= ended.created_at
    assert [(error.line, error.code) for error in ended.errors.data] == [
        (2, "url_mismatched"),
        (3, "method_not_post"),
        (5, "custom_id_duplicate"),
    ]
    assert ended.output_file_id is None
    assert sends(server) == []


async def test_an_input_with_many_faults_says_how_many_more_there_are(stage):
    ended = await stage.until_ended(await stage.submit(b"{}\n" * 50))
    assert len(ended.errors.data) == 21
    assert ended.errors.data[-1].message == "30 more lines are not valid"


@pytest.mark.parametrize("content", [b"", b"\n\n"])
async def test_an_input_without_requests_fails_the_batch(stage, content):
    ended = await stage.until_ended(await stage.submit(content))
    assert [error.code for error in ended.errors.data] == ["empty_file"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/nowhere"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "2000d"}, "completion_window"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ],
)
async def test_a_batch_that_cannot_be_is_refused(stage, changes, param):
    file = await stage.upload(rows(1))
    wanted = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **changes}
    with pytest.raises(openai.BadRequestError) as refused:
        await stage.sdk.batches.create(**wanted)
    assert refused.value.param == param


async def test_a_batch_that_is_not_there_is_not_found(stage):
    for ask in (stage.sdk.batches.retrieve, stage.sdk.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            await ask("batch_none")


# Ends before the end


async def test_a_cancelled_batch_stops_sending_and_keeps_what_is_finished(slow_stage, server):
    batch = await slow_stage.submit(rows(400))
    running = await slow_stage.until(batch, lambda found: found.request_counts.completed >= 20)
    begun = time.monotonic()
    cancelling = await slow_stage.sdk.batches.cancel(batch.id)
    assert cancelling.status in ("cancelling", "cancelled")
    ended = await slow_stage.until_ended(batch)
    assert time.monotonic() - begun < 1.5
    assert ended.status == "cancelled"
    assert ended.cancelling_at <= ended.cancelled_at
    assert await slow_stage.sdk.batches.cancel(batch.id) == ended
    codes = await slow_stage.outcomes(ended)
    assert len(codes) == 400
    assert set(codes.values()) == {None, "batch_cancelled"}
    assert ended.request_counts.completed >= running.request_counts.completed
    assert sum(code is None for code in codes.values()) == ended.request_counts.completed


async def test_a_cancelled_batchs_requests_are_closed_at_the_server_within_a_second(tmp_path, serve):
    server = await serve()
    server.inject(Slow(60.0), Match(text="row-"))
    async with serving(tmp_path / "data", server) as stage:
        batch = await stage.submit(rows(50))
        await until(lambda: server.in_flight >= 4, 10)
        await stage.sdk.batches.cancel(batch.id)
        await until(lambda: not server.in_flight, 1.0)
        ended = await stage.until_ended(batch)
        assert ended.output_file_id is None
        assert set((await stage.outcomes(ended)).values()) == {"batch_cancelled"}


async def test_a_batch_that_has_ended_cannot_be_cancelled(stage):
    ended = await stage.until_ended(await stage.submit(rows(1)))
    with pytest.raises(openai.ConflictError):
        await stage.sdk.batches.cancel(ended.id)


async def test_a_batch_whose_window_ends_keeps_what_is_finished(slow_stage):
    batch = await slow_stage.submit(rows(2000), window="2s")
    ended = await slow_stage.until_ended(batch)
    assert ended.status == "expired"
    assert ended.finalizing_at <= ended.expired_at
    codes = await slow_stage.outcomes(ended)
    assert len(codes) == 2000
    assert set(codes.values()) == {None, "batch_expired"}


async def test_one_batchs_end_does_not_touch_another(slow_stage):
    first, second = await slow_stage.submit(rows(200)), await slow_stage.submit(rows(60))
    await slow_stage.until(first, lambda found: found.request_counts.completed > 0)
    await slow_stage.sdk.batches.cancel(first.id)
    ended = await slow_stage.until_ended(second)
    assert (ended.status, ended.request_counts.completed) == ("completed", 60)


# Jobs


async def test_a_paused_job_sends_nothing_until_it_is_resumed(tmp_path, serve):
    server = await serve(engine=SLOW, answer_tokens=16)
    async with serving(tmp_path / "data", server) as stage:
        batch = await stage.submit(rows(200))
        await stage.until(batch, lambda found: found.request_counts.completed >= 10)
        status, paused = await stage.ask("POST", f"/jobs/{batch.id}/pause")
        assert (status, paused["paused"], paused["status"]) == (200, True, "in_progress")
        await until(lambda: not server.in_flight, 5)
        await asyncio.sleep(0.3)
        sent, counted = len(sends(server)), (await stage.sdk.batches.retrieve(batch.id)).request_counts
        await asyncio.sleep(0.5)
        assert len(sends(server)) == sent
        assert (await stage.sdk.batches.retrieve(batch.id)).request_counts == counted
        assert counted.completed >= 10
        await stage.ask("POST", f"/jobs/{batch.id}/resume")
        ended = await stage.until_ended(batch)
        assert (ended.status, ended.request_counts.completed) == ("completed", 200)
        assert len(sends(server)) == 200


async def test_a_jobs_limit_bounds_what_is_in_flight_and_can_be_taken_away(tmp_path, serve):
    server = await serve(engine=SLOW, answer_tokens=16)
    async with serving(tmp_path / "data", server) as stage:
        batch = await stage.submit(rows(150), extra_body={"limit": 2, "priority": 3, "weight": 0.5})
        await stage.until(batch, lambda found: found.request_counts.completed >= 5)
        assert server.peak_in_flight == 2
        status, job = await stage.ask("PATCH", f"/jobs/{batch.id}", json={"limit": None, "priority": 7})
        assert (status, job["limit"], job["priority"], job["weight"]) == (200, None, 7, 0.5)
        ended = await stage.until_ended(batch)
        assert ended.request_counts.completed == 150
        assert server.peak_in_flight > 2


async def test_weight_and_priority_hold_at_once_and_not_when_the_window_has_room(tmp_path, serve):
    engine = EngineSettings(max_sequences=8, decode_step_s=0.003)
    server = await serve(engine=engine, answer_tokens=16)
    settings = {"pool": {"limit": 8}, "queue": {"shard_size": 256}}
    async with serving(tmp_path / "data", server, **settings) as stage:
        first = await stage.submit([row(number) for number in range(1000)])
        await stage.until(first, lambda found: found.request_counts.completed >= 10)
        await stage.submit([row(number) for number in range(1000, 2000)], extra_body={"weight": 3})
        await until(lambda: sent_of(server, 1)[60:], 5)
        sent = sends(server)
        beside = sent[sent.index("row-01000") :]
        assert len(sent_of(server, 1)) == pytest.approx(len(beside) * 3 / 4, rel=0.1)
        urgent = await stage.submit([row(number) for number in range(2000, 2100)])
        await until(lambda: sent_of(server, 2), 5)
        await stage.ask("PATCH", f"/jobs/{urgent.id}", json={"priority": 100})
        before, left = len(sends(server)), 100 - len(sent_of(server, 2))
        await stage.until(urgent, lambda found: found.request_counts.completed == 100)
        on_their_way = 8
        raised = sends(server)[before : before + left + on_their_way]
        assert len([marker for marker in raised if marker.startswith("row-02")]) == left > 50


async def test_each_of_more_jobs_than_the_window_holds_goes_on_when_resumed_and_after_a_restart(
    tmp_path, serve
):
    server = await serve(engine=EngineSettings(max_sequences=8, decode_step_s=0.003), answer_tokens=16)
    settings = {"pool": {"limit": 8}, "queue": {"shard_size": 256}}
    async with serving(tmp_path / "data", server, **settings) as stage:
        for thousand in range(3):
            last = await stage.submit([row(1000 * thousand + number) for number in range(1000)])
            await until(lambda thousand=thousand: sent_of(server, thousand)[5:], 5)
        await stage.ask("POST", f"/jobs/{last.id}/pause")
        before = len(sent_of(server, 2))
        await stage.ask("POST", f"/jobs/{last.id}/resume")
        await until(lambda: sent_of(server, 2)[before + 5 :], 2)
        await stage.kill()
    before, at = len(sends(server)), [len(sent_of(server, thousand)) for thousand in range(3)]
    async with serving(tmp_path / "data", server, **settings):
        await until(lambda: sends(server)[before + 60 :], 5)
        since = [len(sent_of(server, thousand)) - at[thousand] for thousand in range(3)]
        assert min(since) >= 15


def sent_of(server, thousand):
    return [marker for marker in sends(server) if marker.startswith(f"row-{thousand:02}")]


@pytest.mark.parametrize("change", [{"prority": 5}, {"weight": 0}, {"limit": 0}, {"priority": "high"}, []])
async def test_a_change_that_is_none_is_refused(slow_stage, change):
    batch = await slow_stage.submit(rows(50), extra_body={"priority": 3})
    status, answered = await slow_stage.ask("PATCH", f"/jobs/{batch.id}", json=change)
    assert (status, answered["error"]["code"]) == (400, "invalid_body")
    assert (await slow_stage.ask("GET", f"/jobs/{batch.id}"))[1]["priority"] == 3


async def test_results_can_be_read_while_the_job_runs(slow_stage):
    batch = await slow_stage.submit(rows(200))
    await slow_stage.until(batch, lambda found: found.request_counts.completed >= 10)
    async with slow_stage.http.get(f"{slow_stage.url}/jobs/{batch.id}/results") as response:
        early = (await response.text()).splitlines()
    assert 10 <= len(early) < 200
    await slow_stage.until_ended(batch)
    async with slow_stage.http.get(f"{slow_stage.url}/jobs/{batch.id}/results") as response:
        late = (await response.text()).splitlines()
    assert len(late) == 200
    assert set(early) <= set(late)


async def test_failed_rows_are_sent_again_and_the_others_are_not(stage, server):
    refusing = server.inject(Respond(400, BAD), Match(text="row-0000"))
    batch = await stage.submit(rows(50))
    first = await stage.until_ended(batch)
    assert first.request_counts.failed == 10
    server.withdraw(refusing)
    sent = len(sends(server))
    status, job = await stage.ask("POST", f"/jobs/{batch.id}/retry")
    assert (status, job["status"]) == (200, "in_progress")
    ended = await stage.until_ended(batch)
    assert (ended.status, ended.request_counts.completed, ended.error_file_id) == ("completed", 50, None)
    assert len(sends(server)) == sent + 10
    assert len(await stage.lines(ended.output_file_id)) == 50
    with pytest.raises(openai.NotFoundError):
        await stage.sdk.files.content(first.output_file_id)
    status, answered = await stage.ask("POST", f"/jobs/{batch.id}/retry")
    assert (status, answered["error"]["code"]) == (409, "illegal_move")


async def test_a_cancelled_job_can_be_taken_up_again(slow_stage):
    batch = await slow_stage.submit(rows(120))
    await slow_stage.until(batch, lambda found: found.request_counts.completed >= 10)
    await slow_stage.sdk.batches.cancel(batch.id)
    cancelled = await slow_stage.until_ended(batch)
    assert cancelled.request_counts.completed < 120
    await slow_stage.ask("POST", f"/jobs/{batch.id}/retry")
    ended = await slow_stage.until_ended(batch)
    assert (ended.status, ended.request_counts.completed, ended.cancelled_at) == ("completed", 120, None)


async def test_a_job_whose_files_were_deleted_leaves_nothing_and_cannot_be_retried(
    stage, server, tmp_path, monkeypatch
):
    monkeypatch.setattr("dispatcher.jobs.housekeeping.SWEEP_S", 0.1)
    server.inject(Respond(400, BAD), Match(text="row-00001"))
    ended = await stage.until_ended(await stage.submit(rows(3)))
    kept = [tmp_path / "data/journals" / ended.id, tmp_path / "data/inputs" / ended.id]
    await stage.sdk.files.delete(ended.output_file_id)
    await asyncio.sleep(1.5)
    assert all(path.exists() for path in kept)
    await stage.sdk.files.delete(ended.error_file_id)
    await until(lambda: not any(path.exists() for path in kept), 5)
    status, _ = await stage.ask("POST", f"/jobs/{ended.id}/retry")
    assert status == 409
    assert (await stage.sdk.batches.retrieve(ended.id)).request_counts.total == 3


async def test_made_files_expire_as_the_batch_said(stage):
    expiry = {"anchor": "created_at", "seconds": 7200}
    ended = await stage.until_ended(await stage.submit(rows(1), output_expires_after=expiry))
    made = await stage.sdk.files.retrieve(ended.output_file_id)
    assert made.expires_at == made.created_at + 7200


async def test_a_job_tells_how_it_gets_on(slow_stage, monkeypatch):
    batch = await slow_stage.submit(rows(300), extra_body={"max_attempts": 5})
    await slow_stage.until(batch, lambda found: found.request_counts.completed >= 40)
    status, job = await slow_stage.ask("GET", f"/jobs/{batch.id}")
    assert (status, job["owner"], job["max_attempts"], job["starving"]) == (200, "local", 5, False)
    assert job["rows_per_s"] > 0
    assert job["tokens_per_s"] > 0
    assert job["counts"]["in_flight"] > 0
    assert (job["eta_s"], job["slack_s"]) == (None, None), "its rate is not known yet"
    monkeypatch.setattr("dispatcher.jobs.view.RATE_S_MIN", 1.0)
    job = await slow_stage.until_job(batch, lambda job: job["eta_s"] is not None)
    assert 0 < job["eta_s"] < 60
    assert job["slack_s"] == pytest.approx(86_400 - job["eta_s"], abs=30)
    await slow_stage.ask("POST", f"/jobs/{batch.id}/pause")
    await slow_stage.ask("POST", f"/jobs/{batch.id}/resume")
    _, job = await slow_stage.ask("GET", f"/jobs/{batch.id}")
    assert (job["eta_s"], job["slack_s"]) == (None, None)
    _, listed = await slow_stage.ask("GET", "/jobs")
    assert [found["id"] for found in listed["data"]] == [batch.id]


async def test_the_metrics_tell_of_jobs_and_of_the_queue(slow_stage, monkeypatch):
    monkeypatch.setattr("dispatcher.jobs.housekeeping.TELL_S", 0.0)
    monkeypatch.setattr("dispatcher.jobs.view.RATE_S_MIN", 0.0)
    batch = await slow_stage.submit(rows(3000), window="20s")
    await slow_stage.until(batch, lambda found: found.request_counts.completed >= 5)
    await asyncio.sleep(1.2)
    async with slow_stage.http.get(f"{slow_stage.url}/metrics") as response:
        told = (await response.text()).splitlines()
    assert 'dispatcher_jobs{status="in_progress"} 1.0' in told
    assert 'dispatcher_jobs{status="failed"} 0.0' in told
    assert "dispatcher_jobs_starving 0.0" in told
    assert "dispatcher_jobs_late 1.0" in told, "3,000 rows take longer than 20 s"


@pytest.mark.parametrize("changes", [{"weight": 0}, {"limit": 0}, {"priority": "high"}, []])
async def test_a_change_that_cannot_be_is_refused(stage, changes):
    batch = await stage.submit(rows(1))
    status, _ = await stage.ask("PATCH", f"/jobs/{batch.id}", json=changes)
    assert status == 400


# Restarts


async def test_a_restart_goes_on_with_every_job_and_sends_nothing_again(tmp_path, serve):
    server = await serve(engine=SLOW, answer_tokens=16)
    async with serving(tmp_path / "data", server) as stage:
        running, paused = await stage.submit(rows(150)), await stage.submit(rows(20))
        await stage.ask("POST", f"/jobs/{paused.id}/pause")
        before = await stage.until(running, lambda found: found.request_counts.completed >= 40)
        await stage.kill()
    async with serving(tmp_path / "data", server) as stage:
        ended = await stage.until_ended(running)
        assert (ended.status, ended.request_counts.completed) == ("completed", 150)
        assert ended.in_progress_at == before.in_progress_at
        assert len(await stage.outcomes(ended)) == 150
        assert (await stage.ask("GET", f"/jobs/{paused.id}"))[1]["paused"] is True
        await stage.ask("POST", f"/jobs/{paused.id}/resume")
        assert (await stage.until_ended(paused)).request_counts.completed == 20


@pytest.mark.parametrize(("method", "status"), [("read", "validating"), ("write", "finalizing")])
async def test_a_restart_takes_up_a_job_that_a_failing_disk_has_stopped(
    tmp_path, server, monkeypatch, method, status
):
    async def fail(*_):
        raise StorageError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Paperwork, method, fail)
        async with serving(tmp_path / "data", server) as stage:
            batch = await stage.submit(rows(40))
            await stage.until(batch, lambda found: found.status == status)
            await stage.until_job(batch, lambda job: job["obstacle"] == "the disk is full")
    async with serving(tmp_path / "data", server) as stage:
        ended = await stage.until_ended(batch)
        assert (ended.status, ended.request_counts.completed) == ("completed", 40)
        assert len(await stage.outcomes(ended)) == 40
    assert len(sends(server)) == 40


async def test_a_restart_takes_up_a_cancellation(tmp_path, serve, monkeypatch):
    server = await serve(engine=SLOW, answer_tokens=16)

    async def fail(*_):
        raise StorageError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Paperwork, "write", fail)
        async with serving(tmp_path / "data", server) as stage:
            batch = await stage.submit(rows(200))
            await stage.until(batch, lambda found: found.request_counts.completed >= 10)
            await stage.sdk.batches.cancel(batch.id)
            await asyncio.sleep(0.3)
    sent = len(sends(server))
    async with serving(tmp_path / "data", server) as stage:
        ended = await stage.until_ended(batch)
        assert ended.status == "cancelled"
        codes = await stage.outcomes(ended)
        assert (len(codes), set(codes.values())) == (200, {None, "batch_cancelled"})
    assert len(sends(server)) == sent


async def test_a_restart_takes_up_a_retry(tmp_path, server, monkeypatch):
    async def fail(*_):
        raise StorageError("the disk is full")

    refusing = server.inject(Respond(400, BAD), Match(text="row-0000"))
    with monkeypatch.context() as patched:
        patched.setattr(Paperwork, "take_back_failures", fail)
        async with serving(tmp_path / "data", server) as stage:
            batch = await stage.submit(rows(50))
            await stage.until_ended(batch)
            await stage.ask("POST", f"/jobs/{batch.id}/retry")
            await stage.until_job(batch, lambda job: job["obstacle"] == "the disk is full")
    server.withdraw(refusing)
    async with serving(tmp_path / "data", server) as stage:
        ended = await stage.until_ended(batch)
        assert (ended.status, ended.request_counts.completed) == ("completed", 50)
    assert len(sends(server)) == 60


async def test_a_window_that_ends_while_nobody_serves_has_ended(tmp_path, serve):
    server = await serve(engine=SLOW, answer_tokens=16)
    async with serving(tmp_path / "data", server) as stage:
        batch = await stage.submit(rows(1000), window="2s")
        before = await stage.until(batch, lambda found: found.request_counts.completed >= 10)
    await asyncio.sleep(max(0.0, before.expires_at + 1 - time.time()))
    sent = len(sends(server))
    async with serving(tmp_path / "data", server) as stage:
        ended = await stage.until_ended(batch)
        assert ended.status == "expired"
        assert len(await stage.outcomes(ended)) == 1000
        assert ended.request_counts.completed >= before.request_counts.completed
    assert len(sends(server)) - sent <= 64


async def test_a_job_stopped_while_its_input_is_read_ends_without_files(tmp_path, server, monkeypatch):
    reading = asyncio.Event()
    read = Paperwork.read

    async def slowly(self, kept, check):
        reading.set()
        while True:
            check()
            await asyncio.sleep(0.01)

    async with serving(tmp_path / "data", server) as stage:
        monkeypatch.setattr(Paperwork, "read", slowly)
        batch = await stage.submit(rows(10))
        await reading.wait()
        await stage.sdk.batches.cancel(batch.id)
        ended = await stage.until_ended(batch)
        assert (ended.status, ended.output_file_id, ended.error_file_id) == ("cancelled", None, None)
        monkeypatch.setattr(Paperwork, "read", read)
        assert (await stage.until_ended(await stage.submit(rows(3)))).status == "completed"


async def test_a_restart_removes_what_a_killed_process_left_and_nothing_else(tmp_path, server):
    async with serving(tmp_path / "data", server) as stage:
        ended = await stage.until_ended(await stage.submit(rows(3)))
    for stray in ("files/file-1.upload", "files/file-2", "inputs/batch_1"):
        (tmp_path / "data" / stray).write_bytes(b"x")
    async with serving(tmp_path / "data", server) as stage:
        assert len(await stage.outcomes(ended)) == 3
        assert {path.name for path in (tmp_path / "data/inputs").iterdir()} == {ended.id}
        assert len(list((tmp_path / "data/files").iterdir())) == 2

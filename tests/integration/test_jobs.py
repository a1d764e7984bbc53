"""Jobs under damage and restarts: what is counted, what is hindered, what is left behind."""

import asyncio
import json

import aiohttp
import pytest
from jobs import MODEL, row, rows, sends
from services import serving
from structlog.testing import capture_logs

from dispatcher.jobs import housekeeping, keeper
from dispatcher.jobs.accounts import Accounts
from dispatcher.jobs.files import Files
from dispatcher.jobs.jobs import Jobs
from dispatcher.testing import EngineSettings, Match, Respond

SLOW = EngineSettings(max_sequences=8, decode_step_s=0.01)
BAD = '{"error": {"message": "no", "type": "BadRequestError", "param": "messages", "code": 400}}'


@pytest.fixture
async def slow(serve):
    return await serve(engine=SLOW, answer_tokens=16)


# Damage


async def test_a_journal_that_cannot_be_read_hinders_its_own_job_until_it_is_mended(
    tmp_path, server, monkeypatch
):
    monkeypatch.setattr(keeper, "RETRY_S", 0.1)
    data = tmp_path / "data"
    async with serving(data) as stage:
        hindered, other = await stage.submit(rows(64)), await stage.submit(rows(64))
        journal = data / "journals" / hindered.id / "000/000001.journal"
        await stage.ask("POST", f"/jobs/{hindered.id}/pause")
        journal.mkdir(parents=True)
        await stage.ask("POST", f"/jobs/{hindered.id}/resume")
        await stage.ask("POST", "/servers", json={"url": server.url})
        assert (await stage.until_ended(other)).request_counts.completed == 64
        job = await stage.until_job(hindered, lambda job: job["counts"]["succeeded"] == 48)
        assert str(journal) in job["obstacle"]
        assert "make it readable, or move it away" in job["obstacle"]
        journal.rmdir()
        ended = await stage.until_ended(hindered)
        assert (ended.status, ended.request_counts.completed) == ("completed", 64)
        assert len(await stage.outcomes(ended)) == 64


async def test_a_hindered_job_that_is_cancelled_does_not_wait_for_its_lease_to_expire(
    tmp_path, slow, monkeypatch
):
    monkeypatch.setattr(keeper, "RETRY_S", 0.1)
    data = tmp_path / "data"
    async with serving(data, queue={"shard_size": 16, "lease_s": 600}) as stage:
        batch = await stage.submit(rows(16))
        await stage.ask("POST", f"/jobs/{batch.id}/pause")
        journal = data / "journals" / batch.id / "000/000000.journal"
        journal.mkdir(parents=True)
        await stage.ask("POST", f"/jobs/{batch.id}/resume")
        await stage.until_job(batch, lambda job: job["obstacle"] is not None)
        await stage.sdk.batches.cancel(batch.id)
        await stage.until_job(batch, lambda job: str(journal) in (job["obstacle"] or ""), 5)
        journal.rmdir()
        assert (await stage.until_ended(batch, 5)).status == "cancelled"


# Counts


async def test_what_was_counted_before_a_restart_is_counted_after_it_at_once(tmp_path, slow):
    async with serving(tmp_path / "data", slow) as stage:
        batch = await stage.submit(rows(150))
        await stage.until(batch, lambda found: found.request_counts.completed >= 40)
        await stage.ask("POST", f"/jobs/{batch.id}/pause")
        before = (await stage.sdk.batches.retrieve(batch.id)).request_counts.completed
        await stage.kill()
    async with serving(tmp_path / "data", slow) as stage:
        after = await stage.sdk.batches.retrieve(batch.id)
        assert before <= after.request_counts.completed < 150
        assert after.usage.output_tokens > 0


async def test_rows_that_succeeded_stay_counted_when_failed_ones_are_sent_again(tmp_path, serve):
    server = await serve()
    refusing = server.inject(Respond(400, BAD), Match(text="fail"))
    requests = [row(n, text="fail" if n % 20 == 0 else "") for n in range(100)]
    async with serving(tmp_path / "data", server) as stage:
        batch = await stage.submit(requests)
        assert (await stage.until_ended(batch)).request_counts.failed == 5
        server.withdraw(refusing)
        seen = []
        await stage.ask("POST", f"/jobs/{batch.id}/retry")

        def ended(found):
            seen.append(found.request_counts.completed)
            return found.status == "completed"

        await stage.until(batch, ended)
        assert min(seen) == 95
        assert seen[-1] == 100
    assert len(sends(server)) == 105


# The end of a job, and what comes between


async def test_a_job_that_is_retried_just_as_it_ends_has_one_task_and_not_two(tmp_path, serve, monkeypatch):
    server = await serve()
    refusing = server.inject(Respond(400, BAD), Match(text="fail"))
    removing, go_on = asyncio.Event(), asyncio.Event()

    async def held_up(files, file_id, remove=Files.remove):
        removing.set()
        await go_on.wait()
        await remove(files, file_id)

    monkeypatch.setattr(Files, "remove", held_up)
    async with serving(tmp_path / "data", server) as stage:
        batch = await stage.submit([row(n, text="fail" if n < 2 else "") for n in range(40)])
        await stage.until_ended(batch)
        await stage.ask("POST", f"/jobs/{batch.id}/retry")
        await asyncio.wait_for(removing.wait(), 10)  # it has ended again, and its task removes the old file
        server.withdraw(refusing)
        assert (await stage.ask("POST", f"/jobs/{batch.id}/retry"))[0] == 200
        assert sum(task.get_name() == f"job {batch.id}" for task in asyncio.all_tasks()) == 1
        go_on.set()
        ended = await stage.until_ended(batch)
        assert (ended.status, ended.request_counts.completed) == ("completed", 40)


async def test_a_job_that_ends_while_others_are_swept_can_be_retried(tmp_path, serve, monkeypatch):
    server = await serve()
    refusing = server.inject(Respond(400, BAD), Match(text="fail"))
    monkeypatch.setattr(housekeeping, "SWEEP_S", 0.0)
    monkeypatch.setattr(housekeeping, "LOOK_S", 0.01)
    reading, ended, sweeps = asyncio.Event(), asyncio.Event(), []

    async def held_up(files, names=Files.names):
        found = await names(files)
        sweeps.append(None)
        reading.set()
        await ended.wait()
        return found

    async with serving(tmp_path / "data", server) as stage:
        monkeypatch.setattr(Files, "names", held_up)
        await asyncio.wait_for(reading.wait(), 10)
        batch = await stage.submit([row(n, text="fail" if n < 2 else "") for n in range(4)])
        await stage.until_ended(batch)
        server.withdraw(refusing)
        ended.set()
        async with asyncio.timeout(10):
            while len(sweeps) < 3:  # noqa: ASYNC110  # the sweep that was held up is over
                await asyncio.sleep(0.01)
        assert (await stage.ask("POST", f"/jobs/{batch.id}/retry"))[0] == 200
        assert (await stage.until_ended(batch)).request_counts.completed == 4


async def test_a_job_that_is_cancelled_when_its_rows_have_just_been_counted_has_none(
    tmp_path, server, monkeypatch
):
    counted, go_on = asyncio.Event(), asyncio.Event()

    async def held_up(accounts, kept, follow_anew=Accounts.follow_anew):
        counted.set()
        await go_on.wait()
        await follow_anew(accounts, kept)

    monkeypatch.setattr(Accounts, "follow_anew", held_up)
    async with serving(tmp_path / "data", server) as stage:
        batch = await stage.submit(rows(20))
        await asyncio.wait_for(counted.wait(), 10)
        await stage.sdk.batches.cancel(batch.id)
        go_on.set()
        ended = await stage.until_ended(batch)
        assert (ended.status, ended.request_counts.total, ended.error_file_id) == ("cancelled", 0, None)


# Results


async def test_results_that_cannot_be_read_to_their_end_do_not_look_whole(tmp_path, server, monkeypatch):
    monkeypatch.setattr(keeper, "RETRY_S", 0.1)
    async with serving(tmp_path / "data") as stage:
        batch = await stage.submit(rows(64))
        await stage.ask("POST", f"/jobs/{batch.id}/pause")
        (tmp_path / "data/journals" / batch.id / "000/000001.journal").mkdir(parents=True)
        await stage.ask("POST", f"/jobs/{batch.id}/resume")
        await stage.ask("POST", "/servers", json={"url": server.url})
        await stage.until_job(batch, lambda job: job["counts"]["succeeded"] == 48)
        async with stage.http.get(f"{stage.url}/jobs/{batch.id}/results") as response:
            with pytest.raises(aiohttp.ClientError):
                await response.read()


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "reads no more"])
async def test_who_asks_for_results_and_does_not_take_them_is_let_go(tmp_path, monkeypatch, leaves):
    monkeypatch.setattr("dispatcher.api.sending.PIECE_S", 60 if leaves else 0.2)
    let_go = asyncio.Event()

    async def endless(*_):
        try:
            while True:
                yield b"x" * 2**20
        finally:
            let_go.set()

    async def found(*_):
        return endless()

    async with serving(tmp_path / "data") as stage:
        monkeypatch.setattr(Jobs, "results", found)
        with capture_logs() as logged:
            reader, writer = await asyncio.open_connection("127.0.0.1", stage.service.address[1])
            writer.write(b"GET /jobs/j/results HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b" 200 " in await reader.readline()
            if leaves:
                writer.transport.abort()
            await asyncio.wait_for(let_go.wait(), 10)
            writer.close()
        assert [entry for entry in logged if entry["log_level"] == "error"] == []


# Deletion


async def test_a_job_that_has_ended_can_be_deleted_and_its_files_stay(tmp_path, server):
    data = tmp_path / "data"
    async with serving(data, server) as stage:
        ended = await stage.until_ended(await stage.submit(rows(40)))
        other = await stage.until_ended(await stage.submit(rows(4)))
        gone = {"id": ended.id, "object": "job", "deleted": True}
        assert await stage.ask("DELETE", f"/jobs/{ended.id}") == (200, gone)
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/retry"), ("GET", "/results")):
            assert (await stage.ask(method, f"/jobs/{ended.id}{path}"))[0] == 404
        assert [batch.id async for batch in stage.sdk.batches.list()] == [other.id]
        assert len(await stage.lines(ended.output_file_id)) == 40
        for folder in ("inputs", "journals"):
            assert [path.name for path in (data / folder).iterdir()] == [other.id]
        await stage.kill()
    async with serving(data, server) as stage:
        assert [batch.id async for batch in stage.sdk.batches.list()] == [other.id]


async def test_a_job_that_has_not_ended_cannot_be_deleted(tmp_path, slow):
    async with serving(tmp_path / "data", slow) as stage:
        batch = await stage.submit(rows(100))
        status, answered = await stage.ask("DELETE", f"/jobs/{batch.id}")
        assert (status, answered["error"]["code"]) == (409, "illegal_move")
        await stage.sdk.batches.cancel(batch.id)
        await stage.until_ended(batch)
        assert (await stage.ask("DELETE", f"/jobs/{batch.id}"))[0] == 200


async def test_a_restart_removes_what_a_deletion_left_when_it_was_killed(tmp_path, server):
    data = tmp_path / "data"
    async with serving(data, server) as stage:
        ended = await stage.until_ended(await stage.submit(rows(4)))
        for left in (data / "inputs/batch_gone", data / "journals/batch_gone/000/000000.journal"):
            left.parent.mkdir(parents=True, exist_ok=True)
            left.write_bytes(b"x")
        await stage.kill()
    async with serving(data, server):
        assert [path.name for path in (data / "inputs").iterdir()] == [ended.id]
        assert [path.name for path in (data / "journals").iterdir()] == [ended.id]


# Usage


async def test_cached_and_reasoning_tokens_are_those_that_servers_told(tmp_path, server):
    told = {
        "prompt_tokens": 10,
        "completion_tokens": 6,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}
    answered = {"id": "a", "object": "chat.completion", "model": MODEL, "choices": [choice], "usage": told}
    server.inject(Respond(200, json.dumps(answered)), Match(text="tells"))
    async with serving(tmp_path / "data", server) as stage:
        requests = [row(n, text="tells" if n < 3 else "") for n in range(5)]
        telling = await stage.submit(requests)
        assert telling.usage.input_tokens_details.cached_tokens == 0
        usage = (await stage.until_ended(telling)).usage
        assert usage.input_tokens_details.cached_tokens == 24
        assert usage.output_tokens_details.reasoning_tokens == 12
        usage = (await stage.until_ended(await stage.submit(rows(3)))).usage
        assert usage.output_tokens > 0
        assert usage.input_tokens_details.cached_tokens == 0
        assert usage.output_tokens_details.reasoning_tokens == 0

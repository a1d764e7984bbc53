"""Jobs under damage and restarts: what is counted, what is hindered, what is left behind."""

import json

import pytest
from jobs import MODEL, row, rows, sends
from services import serving

from dispatcher.jobs import keeper
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

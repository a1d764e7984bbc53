"""The service with files and journals in a store that nodes share, here a directory; S3 is in tests/e2e."""

import openai
import pytest
from commands import until
from jobs import rows, sends
from services import serving

from dispatcher.testing import EngineSettings, Match, Respond

SLOW = EngineSettings(max_sequences=8, decode_step_s=0.002)
BAD = '{"error": {"message": "no", "type": "BadRequestError", "param": "messages", "code": 400}}'


@pytest.fixture
def settings(tmp_path):
    url = f"file://{tmp_path}/store"
    return {
        "storage": {"url": url, "directory": str(tmp_path / "scratch")},
        "results": {"sync_s": 0.02, "checkpoint_s": 1},
    }


@pytest.fixture
async def stage(server, settings):
    async with serving(None, server, **settings) as stage:
        yield stage


def stored(tmp_path, folder):
    root = tmp_path / "store" / folder
    return sorted(path for path in root.rglob("*") if path.is_file())


async def test_a_job_is_taken_to_its_end_and_deleted_with_all_it_had(stage, tmp_path):
    batch = await stage.submit(rows(100))
    ended = await stage.until_ended(batch)
    assert set((await stage.outcomes(ended)).values()) == {None}
    assert (ended.status, ended.error_file_id, len(stored(tmp_path, "files"))) == ("completed", None, 2)
    assert len(stored(tmp_path, "journals")) == 7
    assert not list((tmp_path / "scratch").rglob("*.journal"))
    for name in (batch.input_file_id, ended.output_file_id):
        await stage.sdk.files.delete(name)
    await stage.ask("DELETE", f"/jobs/{batch.id}")
    assert stored(tmp_path, "files") == stored(tmp_path, "journals") == []


async def test_failed_rows_are_sent_again_and_the_others_are_not(stage, server, tmp_path):
    refusing = server.inject(Respond(400, BAD), Match(text="row-0000"))
    batch = await stage.submit(rows(50))
    first = await stage.until_ended(batch)
    assert first.request_counts.failed == 10
    server.withdraw(refusing)
    sent = len(sends(server))
    assert (await stage.ask("POST", f"/jobs/{batch.id}/retry"))[0] == 200
    ended = await stage.until_ended(batch)
    assert (ended.status, ended.request_counts.completed, ended.error_file_id) == ("completed", 50, None)
    assert len(sends(server)) == sent + 10
    assert len(await stage.outcomes(ended)) == 50
    await until(lambda: len(stored(tmp_path, "files")) == 2)  # those of the first end go after the second


async def test_a_cancelled_job_has_a_line_for_each_row_and_can_be_taken_up_again(serve, settings):
    server = await serve(engine=SLOW, answer_tokens=16)
    async with serving(None, server, **settings) as stage:
        batch = await stage.submit(rows(60))
        await stage.until(batch, lambda found: found.request_counts.completed >= 10)
        await stage.sdk.batches.cancel(batch.id)
        cancelled = await stage.until_ended(batch)
        assert set((await stage.outcomes(cancelled)).values()) == {None, "batch_cancelled"}
        assert len(await stage.outcomes(cancelled)) == 60
        await stage.ask("POST", f"/jobs/{batch.id}/retry")
        ended = await stage.until_ended(batch)
        assert (ended.status, ended.request_counts.completed) == ("completed", 60)


async def test_the_input_of_a_job_may_be_deleted_and_stays_until_the_job_needs_it_no_more(
    stage, server, tmp_path
):
    refusing = server.inject(Respond(400, BAD), Match(text="row-00001"))
    batch = await stage.submit(rows(30))
    await stage.sdk.files.delete(batch.input_file_id)
    ended = await stage.until_ended(batch)
    assert (ended.request_counts.completed, ended.request_counts.failed) == (29, 1)
    with pytest.raises(openai.NotFoundError):
        await stage.sdk.files.retrieve(batch.input_file_id)
    server.withdraw(refusing)
    await stage.ask("POST", f"/jobs/{batch.id}/retry")
    ended = await stage.until_ended(batch)
    assert ended.request_counts.completed == 30
    assert (tmp_path / "store/files" / batch.input_file_id).exists()
    await stage.sdk.files.delete(ended.output_file_id)
    await stage.ask("DELETE", f"/jobs/{batch.id}")
    assert stored(tmp_path, "files") == []

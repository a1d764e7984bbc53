"""The whole service with its queue on PostgreSQL, asked by the `openai` SDK."""

import asyncio

import pytest
from services import rows, serving
from structlog.testing import capture_logs

from dispatcher.app.clock import SystemClock
from dispatcher.app.service import Service
from dispatcher.config import load_config
from dispatcher.errors import StateError
from dispatcher.model import NodeId
from dispatcher.queue.nodes import NodeIdentity
from dispatcher.queue.shared import open_shared_queue
from dispatcher.testing.engine import EngineSettings

SLOW = EngineSettings(max_sequences=4, decode_step_s=0.02)
pytestmark = pytest.mark.services
PASSWORD = "s3cret-p4ss"  # noqa: S105  # it opens nothing: the server trusts everybody


def settings(url, **queue):
    secret = url.secret.replace("postgres@", f"postgres:{PASSWORD}@")
    return {"queue": {"url": secret, "shard_size": 16, "lease_s": 2, **queue}}


async def test_a_job_is_done_on_postgresql_and_the_password_is_shown_nowhere(url, serve, tmp_path):
    server = await serve(answer_tokens=1)
    with capture_logs() as logs:
        async with serving(tmp_path, server, **settings(url)) as stage:
            batch = await stage.submit(rows(200))
            ended = await stage.until_ended(batch)
            assert ended.status == "completed"
            codes = await stage.outcomes(ended)
            assert (len(codes), set(codes.values())) == (200, {None})
            async with stage.http.get(f"{stage.url}/metrics") as response:
                metrics = await response.text()
            assert 'dispatcher_queue_shards{state="ready"} 0.0' in metrics
    assert PASSWORD not in metrics + str(logs)
    assert not (tmp_path / "queue.sqlite").exists()


async def test_a_restart_of_the_database_pauses_a_job_and_is_told_once(postgres, url, serve, tmp_path):
    server = await serve(answer_tokens=1, engine=SLOW)
    with capture_logs() as logs:
        async with serving(tmp_path, server, **settings(url)) as stage:
            batch = await stage.submit(rows(400))
            await stage.until(batch, lambda found: found.request_counts.completed > 30)
            await asyncio.to_thread(postgres.kill)
            await asyncio.sleep(1.5)
            await asyncio.to_thread(postgres.start)
            ended = await stage.until_ended(batch)
            assert ended.status == "completed"
            assert len(await stage.outcomes(ended)) == 400
    told = [entry["event"] for entry in logs if entry["log_level"] in {"warning", "error"}]
    assert told.count("queue_unreachable") == 1
    assert not {"queue_failed", "job_hindered", "sweep_failed", "queue_depth_unknown"} & set(told)
    assert [entry["event"] for entry in logs].count("queue_reachable") == 1


async def test_a_killed_services_job_is_gone_on_with_after_its_silence(url, serve, tmp_path):
    server = await serve(answer_tokens=1, engine=SLOW)
    async with serving(tmp_path, server, **settings(url)) as stage:
        batch = await stage.submit(rows(300))
        await stage.until(batch, lambda found: found.request_counts.completed > 30)
        await stage.kill()
    async with open_shared_queue(url, SystemClock()) as queue:  # what a kill leaves behind: a silent node
        await queue.nodes.register(NodeIdentity(NodeId("dead"), "h", 1, "0"))
    with capture_logs() as logs:
        async with serving(tmp_path, server, **settings(url)) as stage:
            ended = await stage.until_ended(batch)
            assert len(await stage.outcomes(ended)) == 300
    assert "queue_taken" in [entry["event"] for entry in logs]


async def test_a_second_service_on_the_same_queue_is_refused(url, serve, tmp_path):
    server = await serve(answer_tokens=1)
    async with serving(tmp_path / "first", server, **settings(url)):
        second = Service(
            load_config(None, {**settings(url), "storage": {"url": str(tmp_path / "second")}}, {})
        )
        with pytest.raises(StateError, match="another service is at work on this queue: process"):
            await asyncio.wait_for(second.run(), 30)

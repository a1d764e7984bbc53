"""The service as its operator meets it: what it says of itself when it is well, held up, or cannot start."""

import asyncio

import pytest
from commands import until
from services import rows, serving

from dispatcher.app.service import Service
from dispatcher.config import load_config
from dispatcher.dispatch.node import Node
from dispatcher.errors import ConfigError

QUICK = {"probe_interval_s": 0.2, "readmit_backoff_min_s": 0.2, "readmit_backoff_max_s": 0.4}


async def asked(stage, path):
    async with stage.http.get(stage.url + path) as answer:
        return answer.status, await answer.text()


async def test_clients_of_a_vllm_server_are_told_of_its_health_what_readyz_says(server, tmp_path):
    async with serving(tmp_path, server, dispatch={"drain_s": 20}) as stage:
        assert await asked(stage, "/health") == await asked(stage, "/readyz") == (200, "ready\n")
        server.freeze()
        held = asyncio.create_task(asked_to_answer(stage))
        await until(lambda: server.in_flight)
        stage.service.request_stop()
        assert await asked(stage, "/health") == await asked(stage, "/readyz") == (503, "draining\n")
        held.cancel()


async def asked_to_answer(stage):
    messages = [{"role": "user", "content": "What is it?"}]
    await stage.sdk.chat.completions.create(model="fake-model", messages=messages)


async def test_a_port_in_use_is_said_of_its_setting(server, tmp_path):
    async with serving(tmp_path / "first", server) as stage:
        port = stage.service.address[1]
        settings = {"storage": {"url": str(tmp_path / "second")}, "api": {"port": port}}
        with pytest.raises(ConfigError, match=f"^api.port: {port} on 127.0.0.1 is in use$"):
            await Service(load_config(None, settings, {})).run()


async def test_a_job_without_a_usable_server_says_that_it_waits_for_one(server, tmp_path):
    await server.stop_listening()
    async with serving(tmp_path, server, pool=QUICK) as stage:
        batch = await stage.submit(rows(4))
        job = await stage.until_job(batch, lambda job: job["obstacle"])
        assert job["obstacle"] == "it waits: no server is in rotation for fake-model"
        await server.listen()
        await stage.until_ended(batch)
        job = await stage.until_job(batch, lambda job: job["ended_at"])
        assert (job["obstacle"], job["counts"]["succeeded"]) == (None, 4)


async def test_readyz_shows_strangers_nothing_of_what_storage_says(server, tmp_path, monkeypatch):
    async with serving(tmp_path, server) as stage:
        monkeypatch.setattr(
            Node, "obstacle", property(lambda _node: f"cannot write {tmp_path}/journals/batch_1")
        )
        status, text = await asked(stage, "/readyz")
    assert status == 503
    assert "the log says why" in text
    assert str(tmp_path) not in text

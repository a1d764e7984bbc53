"""What runs before a vLLM server is told to end waits for its open requests, here on the fake one."""

import asyncio
import os
import sys
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from loopback import served
from manifests import KUBERNETES

from dispatcher.testing.engine import EngineSettings

SCRIPT = KUBERNETES / "overlays" / "vllm" / "drain.py"
PROXIES = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy"), "http://127.0.0.1:9")
"""A proxy for downloads, which knows nothing of this pod. Port 9 refuses."""


@asynccontextmanager
async def draining(metrics, answer_s="10"):
    """The script, while it runs, where `metrics` answers for the server's."""
    application = web.Application()
    application.router.add_get("/metrics", metrics)
    async with served(application) as url:
        command = [sys.executable, str(SCRIPT), f"{url}/metrics", "0", answer_s]
        script = await asyncio.create_subprocess_exec(*command, env=os.environ | PROXIES)
        try:
            yield script
        finally:
            if script.returncode is None:
                script.kill()
                await script.wait()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # it is polled
            await asyncio.sleep(0.01)


async def test_a_server_is_drained_before_it_is_ended(serve):
    server = await serve(engine=EngineSettings(max_sequences=8, decode_step_s=1.0), answer_tokens=100)
    looks = []

    async def metrics(_):
        async with http.get(f"{server.url}/metrics") as response:
            looks.append(server.in_flight)
            return web.Response(text=await response.text())

    async with aiohttp.ClientSession() as http:
        body = {"model": "fake-model", "messages": [{"role": "user", "content": "x"}]}
        asking = asyncio.create_task(http.post(f"{server.url}/v1/chat/completions", json=body))
        await until(lambda: server.in_flight == 1)
        async with draining(metrics) as script:
            await until(lambda: len(looks) == 2)
            assert script.returncode is None
            asking.cancel()
            assert await asyncio.wait_for(script.wait(), 60) == 0
    assert looks[0] == 1
    assert server.in_flight == 0


async def test_a_server_too_busy_to_answer_is_asked_again():
    """A busy vLLM may take half a minute for any answer: ended then, it would break everything off."""
    looks = []

    async def metrics(_):
        looks.append(None)
        if len(looks) == 1:
            await asyncio.sleep(60)
        return web.Response(text='vllm:num_requests_running{engine="0"} 0.0\n')

    async with draining(metrics, answer_s="0.2") as script:
        assert await asyncio.wait_for(script.wait(), 60) == 0
    assert len(looks) == 2


@pytest.mark.parametrize("status", [404, 500])
async def test_a_server_without_figures_holds_up_no_end(status):
    async def metrics(_):
        return web.Response(status=status)

    async with draining(metrics) as script:
        assert await asyncio.wait_for(script.wait(), 60) == 0

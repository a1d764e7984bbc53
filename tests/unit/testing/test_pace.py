"""The engine model behind real HTTP: what takes time, and what frees its place."""

import asyncio
import time

import aiohttp
import pytest

from dispatcher.testing import EngineSettings, FakeServer, FakeServerSettings

ROUTE = "/v1/completions"
SLOW = EngineSettings(max_sequences=2, decode_step_s=10.0, kv_tokens=10_000)
FAST = EngineSettings(decode_step_s=0.002, decode_step_growth_s=0.0)


def body(tokens, row=0):
    return {
        "prompt": f"row-{row}",
        "max_tokens": tokens,
        "structured_outputs": {"regex": f"a{{{4 * tokens}}}"},
    }


async def post(client, server, tokens, row=0):
    async with client.post(server.url + ROUTE, json=body(tokens, row)) as response:
        return response.status, await response.json()


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the state of a server has no event
            await asyncio.sleep(0.002)


async def running_and_waiting(client, server):
    async with client.get(server.url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    values = [
        line.rsplit(" ", 1)[1]
        for line in lines
        if line.startswith("vllm:num_requests_") and "reason" not in line
    ]
    return [float(value) for value in values]


async def test_an_answer_takes_the_models_time(client):
    async with FakeServer(FakeServerSettings(engine=FAST)) as server:
        started = time.perf_counter()
        status, answer = await post(client, server, 25)
        assert status == 200
        assert answer["usage"]["completion_tokens"] == 25
        assert time.perf_counter() - started >= 0.05


async def test_a_disconnect_frees_the_slot_for_the_next_in_line(client):
    async with FakeServer(FakeServerSettings(engine=SLOW)) as server:
        tasks = [asyncio.create_task(post(client, server, 5, row)) for row in range(3)]
        await until(lambda: server.in_flight == 3)
        assert await running_and_waiting(client, server) == [2.0, 1.0]
        tasks[0].cancel()
        await until(lambda: server.in_flight == 2)
        assert await running_and_waiting(client, server) == [2.0, 0.0]
        assert (server.disconnects, server.peak_in_flight) == (1, 3)
        for task in tasks:
            task.cancel()
        await until(lambda: server.in_flight == 0)
        assert server.disconnects == 3
        async with client.get(server.url + "/metrics") as response:
            assert 'finished_reason="abort"} 3' in await response.text()
        assert await running_and_waiting(client, server) == [0.0, 0.0]


async def test_stopping_the_server_is_no_disconnect(client):
    async with FakeServer(FakeServerSettings(engine=SLOW)) as server:
        task = asyncio.create_task(post(client, server, 5))
        await until(lambda: server.in_flight == 1)
    with pytest.raises(aiohttp.ClientError):
        await task
    assert server.disconnects == 0


@pytest.mark.parametrize("engine", [None, FAST])
async def test_a_frozen_engine_hangs_while_health_is_green(client, engine):
    async with FakeServer(FakeServerSettings(engine=engine)) as server:
        server.freeze()
        task = asyncio.create_task(post(client, server, 2))
        await until(lambda: server.in_flight == 1)
        assert await running_and_waiting(client, server) == [0.0, 0.0]
        async with client.get(server.url + "/load") as response:
            assert await response.json() == {"server_load": 0}
        async with client.get(server.url + "/health") as response:
            assert response.status == 200
        await asyncio.sleep(0.02)
        assert not task.done()
        server.thaw()
        assert (await task)[0] == 200


async def test_a_freeze_can_end_by_itself(client, server):
    server.freeze(0.02)
    assert (await post(client, server, 2))[0] == 200


async def test_a_sleeping_engine_says_so_and_answers_when_woken(client):
    async with FakeServer(FakeServerSettings(dev_mode=True)) as server:
        await (await client.post(server.url + "/sleep?level=1")).release()
        async with client.get(server.url + "/is_sleeping") as response:
            assert await response.json() == {"is_sleeping": True}
        task = asyncio.create_task(post(client, server, 2))
        await until(lambda: server.in_flight == 1)
        await (await client.post(server.url + "/wake_up")).release()
        assert (await task)[0] == 200
        async with client.get(server.url + "/is_sleeping") as response:
            assert await response.json() == {"is_sleeping": False}


async def test_many_choices_longer_than_the_cache_are_still_answered(client):
    engine = EngineSettings(kv_tokens=64, decode_step_s=0.0001)
    async with (
        FakeServer(FakeServerSettings(engine=engine, max_model_len=64)) as server,
        client.post(server.url + ROUTE, json={**body(40), "n": 4}) as response,
    ):
        assert len((await response.json())["choices"]) == 4


def test_a_cache_smaller_than_the_context_is_refused():
    with pytest.raises(ValueError, match="KV cache"):
        FakeServerSettings(engine=EngineSettings(kv_tokens=100), max_model_len=200)

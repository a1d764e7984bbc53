import asyncio
import io
import json
import re

import aiohttp
import pytest

from dispatcher.testing import FakeServer, FakeServerSettings, serve_fake
from dispatcher.testing.answers import ANSWERS

CHAT = "/v1/chat/completions"
BODY = {"model": "fake-model", "messages": [{"role": "user", "content": "row-17 hello"}]}


async def get(client, server, path, **more):
    async with client.get(server.url + path, **more) as response:
        return response.status, await response.read()


async def post(client, server, path, body=None, **more):
    async with client.post(server.url + path, json=body, **more) as response:
        return response.status, await response.read()


async def metrics(client, server):
    _, text = await get(client, server, "/metrics")
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines)}


async def test_a_chat_is_answered_over_http(client, server):
    async with client.post(server.url + CHAT, json=BODY, headers={"X-Request-Id": "abc"}) as response:
        assert (response.status, response.content_type) == (200, "application/json")
        assert (await response.json())["id"] == "chatcmpl-abc"


@pytest.mark.parametrize("route", ANSWERS)
async def test_every_route_answers_malformed_json_with_400(client, server, route):
    async with client.post(server.url + route, data=b"{") as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "Bad Request"


async def test_a_stream_is_chunked_events(client, server):
    async with client.post(server.url + CHAT, json={**BODY, "stream": True}) as response:
        assert response.content_type == "text/event-stream"
        assert response.headers["Transfer-Encoding"] == "chunked"
        assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_health_is_200_and_empty(client, server):
    assert await get(client, server, "/health") == (200, b"")


async def test_the_model_list_names_root_parent_and_length(client):
    settings = FakeServerSettings(models=("a", "b"), root="org/base", adapters=("lora",), max_model_len=100)
    async with FakeServer(settings) as server:
        _, body = await get(client, server, "/v1/models")
    entries = [(e["id"], e["root"], e["parent"], e["max_model_len"]) for e in json.loads(body)["data"]]
    assert entries == [
        ("a", "org/base", None, 100),
        ("b", "org/base", None, 100),
        ("lora", "lora", "a", 100),
    ]


async def test_version_and_load_are_told(client, server):
    assert await get(client, server, "/version") == (200, b'{"version":"0.32.0"}')
    assert await get(client, server, "/load") == (200, b'{"server_load":0}')


@pytest.mark.parametrize("path", ["/", "/v1/tokenize", "/is_sleeping"])
async def test_what_is_not_there_is_404(client, server, path):
    assert (await get(client, server, path))[0] == 404


async def test_a_route_asked_with_another_method_is_405(client, server):
    assert (await get(client, server, CHAT))[0] == 405
    assert (await post(client, server, "/health"))[0] == 405


@pytest.mark.parametrize("path", ["/sleep", "/wake_up"])
async def test_sleep_exists_in_development_mode_only(client, server, path):
    assert (await post(client, server, path))[0] == 404


async def test_metrics_carry_vllms_names_and_labels(client, server):
    await post(client, server, CHAT, {**BODY, "max_tokens": 1})
    found = await metrics(client, server)
    labels = 'engine="0",model_name="fake-model"'
    names = {re.split(r"[{ ]", key)[0] for key in found}
    assert names >= {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:num_requests_waiting_by_reason",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
        "vllm:iteration_tokens_total_bucket",
        "vllm:engine_sleep_state",
        "vllm:admission_rejections_total",
        "vllm:cache_config_info",
    }
    assert found[f"vllm:generation_tokens_total{{{labels}}}"] == 1
    assert found[f"vllm:prompt_tokens_total{{{labels}}}"] > 1
    assert found[f'vllm:request_success_total{{{labels},finished_reason="length"}}'] == 1
    assert found["process_start_time_seconds"] == server.started_at


async def test_metrics_can_be_read_by_prometheus_own_parser(client, server):
    from prometheus_client.parser import text_string_to_metric_families

    _, text = await get(client, server, "/metrics")
    families = {family.name for family in text_string_to_metric_families(text.decode())}
    assert "vllm:num_requests_running" in families
    assert "process_start_time_seconds" in families


async def test_a_key_guards_v1_and_nothing_else(client):
    async with FakeServer(FakeServerSettings(api_key="secret")) as server:
        for headers in ({}, {"Authorization": "Bearer other"}):
            refused = await post(client, server, CHAT, BODY, headers=headers)
            assert refused == (401, b'{"error":"Unauthorized"}')
            assert (await get(client, server, "/v1/models", headers=headers))[0] == 401
        right = {"Authorization": "Bearer secret"}
        assert (await post(client, server, CHAT, BODY, headers=right))[0] == 200
        assert (await get(client, server, "/health"))[0] == 200
        assert (await post(client, server, "/tokenize", {"prompt": "a"}))[0] == 200


def test_a_key_is_not_shown():
    assert "secret" not in repr(FakeServerSettings(api_key="secret"))


async def test_the_log_tells_marker_id_route_and_reuse(client, server):
    for _ in range(2):
        await post(client, server, CHAT, BODY, headers={"X-Request-Id": "r"})
    await get(client, server, "/health")
    first, second = server.requests
    assert (first.marker, first.request_id, first.route) == ("row-17", "r", CHAT)
    assert (first.reused, second.reused) == (False, True)
    assert first.arrived_at <= second.arrived_at


async def test_the_log_keeps_the_latest_only(client):
    async with FakeServer(FakeServerSettings(log_max=2)) as server:
        for row in range(3):
            await post(client, server, "/v1/completions", {"prompt": f"row-{row}"})
        assert [record.marker for record in server.requests] == ["row-1", "row-2"]


async def test_a_body_of_several_megabytes_is_taken(client, server):
    body = io.BytesIO(b'{"prompt": "%b"}' % (b"x" * 5_000_000))
    async with client.post(server.url + "/v1/completions", data=body) as response:
        assert (await response.json())["error"]["param"] == "input_tokens"


async def test_a_body_beyond_the_limit_is_413(client):
    async with FakeServer(FakeServerSettings(body_bytes_max=100)) as server:
        assert (await post(client, server, CHAT, {"messages": "x" * 200}))[0] == 413


async def test_an_idle_connection_is_closed_after_a_while(client):
    async with FakeServer(FakeServerSettings(keepalive_s=0.05)) as server:
        await post(client, server, CHAT, BODY)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()


async def test_serving_ends_when_it_is_told_to(client):
    stop = asyncio.Event()
    async with FakeServer() as other:
        port = other.port
    serving = asyncio.create_task(serve_fake(FakeServerSettings(), "127.0.0.1", port, stop))
    async with asyncio.timeout(20):
        while True:
            try:
                async with client.get(f"http://127.0.0.1:{port}/health") as response:
                    assert response.status == 200
                break
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.005)
        stop.set()
        await serving
    with pytest.raises(aiohttp.ClientConnectorError):
        await client.get(f"http://127.0.0.1:{port}/health")


async def test_an_address_in_use_is_an_error_not_a_surprise(server):
    with pytest.raises(OSError, match="in use"):
        await FakeServer(port=server.port).__aenter__()


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="at least one model"):
        FakeServerSettings(models=())

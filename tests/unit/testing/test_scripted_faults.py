"""Every fault over real HTTP, as a client meets it."""

import asyncio
import json
import time

import aiohttp
import pytest

from dispatcher.testing import (
    Die,
    Drop,
    Ending,
    FakeServer,
    Freeze,
    Hang,
    Match,
    Refuse,
    Reset,
    Respond,
    Slow,
    Spoil,
    Spoilage,
    presets,
)

CHAT = "/v1/chat/completions"
BODY = {"model": "fake-model", "messages": [{"role": "user", "content": "row-17 hello"}]}


async def post(client, server, body=None, **more):
    async with client.post(server.url + CHAT, json=body or BODY, **more) as response:
        return response.status, await response.read()


async def health(client, server):
    async with client.get(server.url + "/health") as response:
        return response.status


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the state of a server has no event
            await asyncio.sleep(0.002)


# --- faults of one request ---


@pytest.mark.parametrize("name", presets.PRESETS)
async def test_every_preset_is_answered_as_it_is_written(client, server, name):
    wanted = presets.PRESETS[name]
    server.inject(wanted)
    async with client.post(server.url + CHAT, json=BODY) as response:
        assert response.status == wanted.status
        assert await response.text() == wanted.body
        assert response.headers["Content-Type"] == wanted.content_type
        assert wanted.headers.items() <= dict(response.headers).items()


def test_presets_have_the_known_shapes():
    nested = json.loads(presets.context_length().body)["error"]
    flat = json.loads(presets.PRESETS["context_length_flat_400"].body)
    assert flat == {"object": "error", **nested}
    assert nested["param"] == "input_tokens"
    core = json.loads(presets.ENGINE_CORE_500.body)["error"]
    assert core == {
        "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }


async def test_a_fault_takes_only_its_row_and_only_its_times(client, server):
    server.inject(Respond(500), Match(text="row-17"), times=1)
    other = {"messages": [{"role": "user", "content": "row-18"}]}
    assert (await post(client, server, other))[0] == 200
    assert [(await post(client, server))[0] for _ in range(2)] == [500, 200]


async def test_a_reset_is_a_reset(client, server):
    server.inject(Reset())
    with pytest.raises(aiohttp.ClientOSError) as caught:
        await post(client, server)
    assert isinstance(caught.value, ConnectionResetError) or caught.value.errno == 104
    assert (len(server.requests), server.disconnects) == (1, 0)


async def test_a_reused_connection_is_dropped_after_the_request_was_read(server):
    server.inject(Drop(), Match(reused=True))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    data = json.dumps(BODY).encode()
    request = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
    writer.write(request)
    assert (await reader.readline()).endswith(b"200 OK\r\n")
    while await reader.readline() != b"\r\n":
        pass
    writer.write(request)
    rest = await reader.read()
    assert b"HTTP/1.1" not in rest
    assert [record.reused for record in server.requests] == [False, True]
    writer.close()


async def test_a_hang_never_answers_and_is_a_disconnect_when_given_up(client, server):
    server.inject(Hang())
    with pytest.raises(TimeoutError):
        await post(client, server, timeout=aiohttp.ClientTimeout(total=0.03))
    await until(lambda: server.in_flight == 0)
    assert server.disconnects == 1


async def test_a_slow_answer_is_late_and_right(client, server):
    server.inject(Slow(0.05))
    started = time.perf_counter()
    assert (await post(client, server))[0] == 200
    assert time.perf_counter() - started >= 0.05


async def test_a_cut_body_is_shorter_than_announced(client, server):
    server.inject(Spoil(Spoilage.CUT))
    with pytest.raises(aiohttp.ClientPayloadError):
        await post(client, server)
    assert server.disconnects == 0


@pytest.mark.parametrize("how", [how for how in Spoilage if how is not Spoilage.CUT])
async def test_a_spoiled_answer_is_200_and_wrong(client, server, how):
    _, good = await post(client, server, headers={"X-Request-Id": "a"})
    server.inject(Spoil(how))
    status, spoiled = await post(client, server, headers={"X-Request-Id": "a"})
    assert status == 200
    assert spoiled != good


async def test_a_spoiled_stream_has_the_streams_content_type(client, server):
    server.inject(Spoil(Spoilage.STREAM_ERROR))
    async with client.post(server.url + CHAT, json=BODY) as response:
        assert response.content_type == "text/event-stream"
        assert b'"error"' in await response.read()


async def test_above_a_load_requests_are_turned_away(client, server):
    server.inject(Slow(0.05))
    server.inject(presets.queue_full(429, retry_after_s=7), Match(in_flight_min=2))
    statuses = await asyncio.gather(*(post(client, server) for _ in range(4)))
    assert sorted(status for status, _ in statuses) == [200, 200, 429, 429]
    async with client.get(server.url + "/metrics") as response:
        assert 'reason="max_num_queued_reqs"} 2' in await response.text()


async def test_health_can_be_slow_and_unwell(client, server):
    server.inject(Slow(0.03), Match(route="/health"))
    server.inject(Respond(503), Match(route="/health"), times=1)
    started = time.perf_counter()
    assert await health(client, server) == 503
    assert await health(client, server) == 200
    assert time.perf_counter() - started >= 0.06
    assert (await post(client, server))[0] == 200


async def test_an_open_request_id_cannot_be_used_twice(client, server):
    server.inject(Hang(), times=1)
    headers = {"X-Request-Id": "same"}
    first = asyncio.create_task(post(client, server, headers=headers))
    await until(lambda: server.in_flight == 1)
    status, body = await post(client, server, headers=headers)
    assert status == 400
    assert b"already running" in body
    first.cancel()
    await until(lambda: server.in_flight == 0)
    assert (await post(client, server, headers=headers))[0] == 200


# --- faults of the whole server ---


async def refused(client, server):
    try:
        await health(client, server)
    except aiohttp.ClientConnectorError:
        return True
    return False


async def test_the_listener_closes_and_opens_again_on_one_port(client, server):
    port = server.port
    for _ in range(3):
        await server.stop_listening()
        assert not server.listening
        assert await refused(client, server)
        await server.listen()
        assert server.port == port
        assert await health(client, server) == 200


async def test_a_closing_listener_lets_requests_in_flight_end(client, server):
    server.inject(Slow(0.05))
    task = asyncio.create_task(post(client, server))
    await until(lambda: server.in_flight == 1)
    await server.stop_listening()
    assert (await task)[0] == 200
    assert await refused(client, server)


async def test_a_refusal_passes(client, server):
    server.inject(Refuse(0.05), times=1)
    assert (await post(client, server))[0] == 200
    assert await refused(client, server)
    await until(lambda: server.listening)
    assert (await post(client, server))[0] == 200


async def test_a_row_can_freeze_the_engine(client, server):
    server.inject(Freeze(0.03), Match(text="row-17"))
    started = time.perf_counter()
    assert (await post(client, server))[0] == 200
    assert time.perf_counter() - started >= 0.03


@pytest.mark.parametrize("ending", presets.DEATHS)
@pytest.mark.parametrize("last_health", [200, 503])
async def test_a_death_answers_all_in_flight_then_health_once_then_nobody(
    client, server, ending, last_health
):
    server.inject(Hang())
    tasks = [asyncio.create_task(post(client, server)) for _ in range(3)]
    await until(lambda: server.in_flight == 3)
    before = server.started_at
    await server.die(Die(seconds=0.05, ending=ending, last_health=last_health, linger_s=1))
    wanted = presets.DEATHS[ending]
    assert [await task for task in tasks] == [(500, wanted.body.encode())] * 3
    assert (await post(client, server))[0] == 500
    assert await health(client, server) == last_health
    await until(lambda: not server.listening)
    assert await refused(client, server)
    await until(lambda: server.listening)
    server.clear()
    assert server.started_at > before
    assert (await post(client, server))[0] == 200
    assert server.disconnects == 0


async def test_a_row_can_kill_the_server_with_all_its_connections(client, server):
    server.inject(Die(seconds=0.05, ending=Ending.RESET, linger_s=0), Match(text="row-17"))
    server.inject(Hang())
    other = {"messages": [{"role": "user", "content": "row-18"}]}
    bystander = asyncio.create_task(post(client, server, other))
    await until(lambda: server.in_flight == 1)
    with pytest.raises(aiohttp.ClientOSError):
        await post(client, server)
    with pytest.raises(aiohttp.ClientOSError):
        await bystander
    await until(lambda: not server.listening)
    await until(lambda: server.listening)


async def test_a_silent_death_neither_answers_nor_closes_until_the_restart(client, server):
    server.inject(Hang(), times=1)
    task = asyncio.create_task(post(client, server))
    await until(lambda: server.in_flight == 1)
    await server.die(Die(seconds=None, ending=Ending.SILENCE, linger_s=0))
    await until(lambda: not server.listening)
    assert await refused(client, server)
    await asyncio.sleep(0.02)
    assert not task.done()
    await server.restart()
    with pytest.raises(aiohttp.ClientError):
        await task
    assert (await post(client, server))[0] == 200


async def test_a_death_without_an_end_lasts_until_the_restart(client, server):
    before = server.started_at
    await server.die(Die(seconds=None, linger_s=0))
    await until(lambda: not server.listening)
    await asyncio.sleep(0.02)
    assert await refused(client, server)
    await server.restart()
    assert server.started_at > before
    assert (await post(client, server))[0] == 200


async def test_the_dead_do_not_die_again(client, server):
    await server.die(Die(seconds=None, linger_s=1))
    await server.die(Die(seconds=0.0, ending=Ending.TEXT, linger_s=0))
    assert (await post(client, server))[1] == presets.ENGINE_CORE_500.body.encode()


async def test_a_death_ends_the_refusal_it_falls_into(client, server):
    server.inject(Slow(0.03), times=1)
    server.inject(Refuse(0.05), times=1)
    task = asyncio.create_task(post(client, server))
    await until(lambda: not server.listening)
    await server.die(Die(seconds=None, linger_s=0))
    await asyncio.wait({task})
    await asyncio.sleep(0.06)
    assert not server.listening


async def test_a_restart_breaks_what_is_in_flight_and_begins_at_zero(client, server):
    await post(client, server)
    server.inject(Hang(), times=1)
    task = asyncio.create_task(post(client, server))
    await until(lambda: server.in_flight == 1)
    await server.restart()
    with pytest.raises(aiohttp.ClientError):
        await task
    async with client.get(server.url + "/metrics") as response:
        assert 'vllm:generation_tokens_total{engine="0",model_name="fake-model"} 0' in await response.text()
    assert server.disconnects == 0


@pytest.mark.parametrize("fault", [Die(seconds=30, linger_s=0), Refuse(30), Freeze(30)])
async def test_a_server_can_be_stopped_in_the_middle_of_any_trouble(client, fault):
    async with FakeServer() as server:
        server.inject(fault)
        task = asyncio.create_task(post(client, server))
        await until(lambda: len(server.requests) == 1)
    await asyncio.wait({task}, timeout=20)
    assert task.done()
    assert task.exception() is not None or task.result()[0] in {200, 500}


# --- from another process ---


async def order(client, server, method, path, body=None):
    async with client.request(method, f"{server.url}/fake/{path}", json=body) as response:
        return response.status, await response.json()


async def test_faults_are_scripted_over_http(client, server):
    slow = {"fault": {"kind": "slow", "seconds": 0}, "match": {"text": "row-17"}, "times": 3}
    assert await order(client, server, "POST", "faults", slow) == (200, {"id": 1})
    assert await order(client, server, "POST", "faults", {"preset": "mesh_503"}) == (200, {"id": 2})
    assert (await post(client, server))[0] == 503
    _, listed = await order(client, server, "GET", "faults")
    assert [(entry["id"], entry["fired"], entry["times"]) for entry in listed] == [(1, 1, 3), (2, 1, None)]
    assert (await order(client, server, "DELETE", "faults/2"))[0] == 200
    assert (await post(client, server))[0] == 200
    assert (await order(client, server, "DELETE", "faults"))[0] == 200
    assert await order(client, server, "GET", "faults") == (200, [])


async def test_clearing_thaws_and_wakes(client, server):
    server.freeze()
    server.sleep()
    task = asyncio.create_task(post(client, server))
    await until(lambda: server.in_flight == 1)
    await order(client, server, "DELETE", "faults")
    assert (await task)[0] == 200


async def test_a_death_is_ordered_over_http(client, server):
    before = server.started_at
    assert await order(client, server, "POST", "die", {"seconds": 0.02, "linger_s": 0}) == (200, {})
    await until(lambda: server.started_at > before and server.listening)
    assert (await post(client, server))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "faults", {"fault": {"kind": "flood"}}, 400),
        ("POST", "faults", {"fault": {"kind": "slow"}}, 400),
        ("POST", "faults", {"preset": "unheard_of"}, 400),
        ("POST", "faults", {}, 400),
        ("POST", "faults", {"preset": "text_500", "mach": {}}, 400),
        ("POST", "die", {"ending": "whimper"}, 400),
        ("DELETE", "faults/9", None, 404),
        ("DELETE", "faults/x", None, 404),
        ("GET", "nothing", None, 404),
    ],
)
async def test_a_wrong_order_is_refused_and_changes_nothing(client, server, method, path, body, status):
    assert (await order(client, server, method, path, body))[0] == status
    assert await order(client, server, "GET", "faults") == (200, [])
    assert (await post(client, server))[0] == 200

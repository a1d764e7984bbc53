import asyncio
import json
import time
from contextlib import asynccontextmanager
from statistics import median

import aiohttp
import openai
import pytest
from aiohttp import web
from commands import until

from dispatcher.api import exchange, relay
from dispatcher.app import service as module
from dispatcher.app.service import Service
from dispatcher.config import load_config
from dispatcher.model import Health, ProbeReport
from dispatcher.testing import Die, Drop, Ending, Hang, Match, Reset, Respond, Slow

MODEL = "fake-model"
ASK = [{"role": "user", "content": "What is it?"}]
QUICK = {"probe_interval_s": 0.2, "readmit_backoff_min_s": 0.2, "readmit_backoff_max_s": 0.5}
OVERLOADED = Respond(503, '{"error":{"message":"full","type":"QueueOverflowError","code":503}}')


class Live:
    """A service at work, with what asks it."""

    def __init__(self, service, http):
        self.service = service
        self.http = http
        host, port = service.address
        self.base = f"http://{host}:{port}"
        self.sdk = openai.AsyncOpenAI(base_url=f"{self.base}/v1", api_key="a client's", max_retries=0)
        self.relay = service._relay
        self.desk = self.relay._desk
        self.pool = self.desk._pool

    def post(self, body=None, route="/v1/chat/completions", **options):
        body = {"model": MODEL, "messages": ASK} if body is None else body
        return self.http.post(self.base + route, json=body, **options)

    async def chat(self, text="What is it?", **options):
        messages = [{"role": "user", "content": text}]
        return await self.sdk.chat.completions.create(model=MODEL, messages=messages, **options)

    async def ready(self, servers, limit=0):
        def roomy():
            now = time.monotonic()
            return sum(server.permits_free(now) > limit for server in self.pool.active()) >= servers

        await until(roomy)

    @property
    def in_flight(self):
        return sum(server.in_flight for server in self.pool.servers.values())


@pytest.fixture
async def live(tmp_path):
    """Starts services: `async with live(*urls, **sections) as service`."""

    @asynccontextmanager
    async def start(*servers, ready=None, **sections):
        settings = {
            "servers": list(servers),
            "storage": {"url": str(tmp_path / "storage")},
            "telemetry": {"log_level": "error"},
            **sections,
            "api": {"port": 0, **sections.get("api", {})},
            "pool": {**QUICK, **sections.get("pool", {})},
        }
        service = Service(load_config(None, settings, {}))
        running = asyncio.create_task(service.run())
        await until(lambda: service.address is not None or running.done())
        if running.done():
            await running
        async with aiohttp.ClientSession() as http:
            started = Live(service, http)
            try:
                await started.ready(len(servers) if ready is None else ready)
                yield started
            finally:
                await started.sdk.close()
                service.request_stop()
                async with asyncio.timeout(20):
                    await running

    return start


class Scripted:
    """A server that does what a test says; what else the pool asks of it is answered well."""

    def __init__(self, handler):
        self.handler = handler
        self.seen = []

    async def handle(self, request):
        match request.path:
            case "/health":
                return web.Response()
            case "/v1/models":
                return web.json_response({"object": "list", "data": [{"id": MODEL, "root": MODEL}]})
            case "/v1/chat/completions":
                body = await request.read()
                if request.headers.get("X-Request-Id", "").startswith("test"):
                    self.seen.append((request, body))
                    return await self.handler(request)
                return web.json_response(_chat())
        return web.json_response({"detail": "Not Found"}, status=404)


def _chat(text="yes"):
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
        "usage": usage,
    }


@pytest.fixture
async def scripted():
    runners = []

    async def start(handler):
        server = Scripted(handler)
        runner = web.ServerRunner(web.Server(server.handle, handler_cancellation=True), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return server

    yield start
    for runner in runners:
        await runner.cleanup()


# The SDK


async def test_the_sdk_chats_embeds_and_lists_models(serve, live):
    one, two = await serve(), await serve(models=("other-model", "org/third"))
    async with live(one.url, two.url) as service:
        answer = await service.chat()
        assert answer.choices[0].message.content
        assert answer.usage.completion_tokens > 0
        embedded = await service.sdk.embeddings.create(model=MODEL, input=["a", "b"])
        assert len(embedded.data) == 2
        completed = await service.sdk.completions.create(model="other-model", prompt="once")
        assert completed.model == "other-model"
        responded = await service.sdk.responses.create(model=MODEL, input="hello")
        assert responded.output_text
        assert {each.id async for each in await service.sdk.models.list()} == {
            MODEL,
            "other-model",
            "org/third",
        }
        assert (await service.sdk.models.retrieve("org/third")).id == "org/third"
        with pytest.raises(openai.NotFoundError):
            await service.sdk.models.retrieve("fourth")


async def test_the_sdk_reads_a_stream(server, live):
    async with live(server.url) as service:
        chunks = [chunk async for chunk in await service.chat(stream=True)]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert any(chunk.choices and chunk.choices[0].finish_reason for chunk in chunks)
        assert service.in_flight == 0


async def test_the_tokens_of_a_stream_are_counted_where_the_client_asks_for_them(server, live):
    async with live(server.url) as service:
        await service.ready(1)
        (counted,) = (one.record for one in service.pool.servers.values())
        stream = await service.chat(stream=True, stream_options={"include_usage": True})
        used = [chunk.usage async for chunk in stream][-1]
        await until(lambda: counted.tokens)
        assert counted.tokens == used.completion_tokens
        async with service.http.get(f"{service.base}/metrics") as answer:
            told = f'dispatcher_tokens_total{{kind="prompt",model="{MODEL}"}} {used.prompt_tokens}.0'
            assert told in await answer.text()


async def test_a_servers_refusal_of_a_request_is_the_sdks_own_exception(server, live):
    async with live(server.url) as service:
        with pytest.raises(openai.BadRequestError) as refused:
            await service.chat("word " * 20_000)
        assert "maximum context length" in str(refused.value)
        assert refused.value.param == "input_tokens"
        with pytest.raises(openai.NotFoundError) as refused:
            await service.sdk.chat.completions.create(model="nobody's", messages=ASK)
        assert refused.value.code == "model_not_found"
        assert (await service.chat()).choices


async def test_a_body_that_is_no_object_is_refused_and_one_without_a_model_goes_anywhere(server, live):
    async with live(server.url) as service:
        for body in (b"{", b"[]", b'{"model": 7}', b"\xff", b"[" * 100_000):
            async with service.http.post(f"{service.base}/v1/chat/completions", data=body) as response:
                assert response.status == 400, body
                assert (await response.json())["error"]["type"] == "invalid_request_error"
        async with service.post({"messages": ASK}) as response:
            assert response.status == 200
        surrogate = b'{"model":"fake-model","messages":[{"role":"user","content":"\\ud83d"}]}'
        async with service.http.post(f"{service.base}/v1/chat/completions", data=surrogate) as response:
            assert response.status in (200, 400)
            assert "TextEncodeInput" in await response.text() or response.status == 200


# What passes through


async def test_bytes_pass_through_untouched_and_the_clients_key_does_not(scripted, live):
    answer = (
        b'{ "model":"fake-model",\n "choices":[{"finish_reason":"stop","message":{"content":"\xc3\xa9"}}]}  '
    )

    async def handler(request):
        headers = {
            "X-Request-Id": "theirs",
            "Content-Type": "application/json; charset=utf-8",
            "X-Other": "1",
        }
        return web.Response(body=answer, headers=headers)

    server = await scripted(handler)
    body = b'{"model": "fake-model",  "messages": [], "unknown": {"a": 1.0}}'
    async with live({"url": server.url, "api_key": "the-servers"}) as service:
        headers = {
            "Authorization": "Bearer a-clients",
            "X-Request-Id": "test-1",
            "Content-Type": "application/json",
        }
        url = f"{service.base}/v1/chat/completions"
        async with service.http.post(url, data=body, headers=headers) as response:
            assert await response.read() == answer
            assert response.headers["X-Request-Id"] == "theirs"
            assert response.headers["Content-Type"] == "application/json; charset=utf-8"
            assert "X-Other" not in response.headers
        ((seen, seen_body),) = server.seen
        assert seen_body == body
        assert seen.headers["Authorization"] == "Bearer the-servers"
        assert seen.headers["X-Request-Id"] == "test-1"


# Failures before the first byte


@pytest.mark.parametrize(
    "fault",
    [
        Reset(),
        Drop(),
        Respond(500, "Internal Server Error", "text/plain"),
        Respond(502, "<html>bad gateway</html>", "text/html"),
        OVERLOADED,
        Respond(429, '{"error":{"message":"full"}}', headers={"Retry-After": "1"}),
        Respond(401, '{"error":"Unauthorized"}'),
        Respond(404, '{"error":{"message":"no","type":"NotFoundError","param":"model","code":404}}'),
        Die(seconds=None),
        Die(seconds=None, ending=Ending.RESET),
        Die(seconds=None, ending=Ending.SILENCE),
    ],
    ids=lambda fault: f"{type(fault).__name__}-{getattr(fault, 'status', getattr(fault, 'ending', ''))}",
)
async def test_a_failure_before_the_first_byte_goes_to_another_server(serve, live, fault):
    bad, good = await serve(), await serve()
    async with live(bad.url, good.url) as service:
        bad.inject(fault, Match(text="What is it?"))
        async with asyncio.timeout(10):
            answers = await asyncio.gather(*(service.chat() for _ in range(6)))
        assert all(answer.choices[0].message.content for answer in answers)
        assert service.in_flight == 0
        assert not service.desk.open


async def test_a_request_is_sent_three_times_at_most(serve, live):
    servers = [await serve() for _ in range(5)]
    async with live(*(server.url for server in servers)) as service:
        for server in servers:
            server.inject(OVERLOADED, Match(text="row-3"))
        with pytest.raises(openai.InternalServerError):
            await service.chat("row-3")
        seen = seen_by(servers, "row-3")
        assert len(seen) == 3
        assert len({each.request_id for each in seen}) == 1


@pytest.mark.parametrize("ending", Ending)
async def test_a_request_that_ends_its_servers_ends_two_at_most(serve, live, ending):
    servers = [await serve() for _ in range(4)]
    async with live(*(server.url for server in servers)) as service:
        for server in servers:
            server.inject(Die(seconds=None, ending=ending), Match(text="row-6"))
        insistent = service.sdk.with_options(max_retries=2)  # its default
        with pytest.raises(openai.InternalServerError):
            await insistent.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "row-6"}]
            )
        assert len(seen_by(servers, "row-6")) == 2
        assert (await service.chat()).choices


def seen_by(servers, marker):
    return [each for server in servers for each in server.requests if each.marker == marker]


async def test_without_a_usable_server_the_answer_is_503_and_says_when_to_come_again(serve, live):
    server = await serve()
    async with live(server.url) as service:
        server.inject(Die(seconds=None, linger_s=0), Match(text="What is it?"))
        with pytest.raises(openai.APIStatusError):
            await service.chat()
        await until(lambda: not any(service.pool.active()))
        async with service.post() as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) > 0
            assert (await response.json())["error"]["code"] == "no_server"


# Streams


def _events(count, pause_s, then):
    async def handler(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(count):
            await response.write(b'data: {"n": %d}\n\n' % number)
            await asyncio.sleep(pause_s)
        await then(request)
        return response

    return handler


async def test_each_chunk_of_a_stream_is_passed_on_at_once(scripted, live):
    async def end(_request):
        return

    server = await scripted(_events(5, 0.1, end))
    async with live(server.url) as service:
        came = []
        async with service.post(headers={"X-Request-Id": "test"}) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            came += [(time.monotonic(), chunk) async for chunk in response.content.iter_any()]
        assert b"".join(chunk for _, chunk in came) == b"".join(b'data: {"n": %d}\n\n' % n for n in range(5))
        assert came[-1][0] - came[0][0] > 0.3
        assert service.in_flight == 0


async def test_a_stream_that_breaks_off_is_broken_off_and_not_sent_again(scripted, live):
    async def break_off(request):
        request.transport.abort()

    servers = [await scripted(_events(2, 0.01, break_off)) for _ in range(2)]
    async with live(*(server.url for server in servers)) as service:
        async with service.post(headers={"X-Request-Id": "test"}) as response:
            assert response.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        assert sum(len(server.seen) for server in servers) == 1
        assert service.in_flight == 0


async def test_a_server_that_is_given_up_ends_its_streams_and_its_waits(serve, scripted, live):
    async def hang(_request):
        await asyncio.sleep(30)

    server = await scripted(_events(1, 0, hang))
    async with live(server.url) as service:
        async with service.post(headers={"X-Request-Id": "test"}) as response:
            await response.content.readany()
            (listed,) = service.pool.servers.values()
            down = ProbeReport(health=Health.REFUSED, detail="refused")
            service.relay._carry_out(service.pool.probed(listed, down))
            with pytest.raises(aiohttp.ClientPayloadError):
                await asyncio.wait_for(response.read(), 20)
        assert service.in_flight == 0


# Clients that leave


async def test_a_client_that_leaves_aborts_its_request_within_a_second(serve, live):
    server = await serve()
    async with live(server.url) as service:
        server.inject(Hang(), Match(text="What is it?"))
        asking = asyncio.create_task(service.chat())
        await until(lambda: service.in_flight)
        await asyncio.sleep(0.1)
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: not (service.in_flight or server.in_flight), timeout_s=1)
        assert server.disconnects == 1
        assert not service.desk.open


async def test_a_client_that_leaves_in_a_stream_closes_it_at_the_server(scripted, live):
    ended = asyncio.Event()

    async def hang(_request):
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    server = await scripted(_events(1, 0, hang))
    async with live(server.url) as service:
        async with service.post(headers={"X-Request-Id": "test"}) as response:
            await response.content.readany()
            response.close()
        async with asyncio.timeout(1):
            await ended.wait()
        assert service.in_flight == 0


async def test_a_client_that_leaves_while_it_waits_is_forgotten(serve, live):
    server = await serve()
    async with live(server.url, pool={"limit": 1}) as service:
        server.inject(Slow(0.6), Match(text="first"), times=1)
        first = asyncio.create_task(service.chat("first"))
        await until(lambda: service.in_flight)
        second = asyncio.create_task(service.chat("second"))
        third = asyncio.create_task(service.chat("third"))
        await until(lambda: service.desk.waiting == 2)
        second.cancel()
        await asyncio.wait([second])
        assert (await first).choices
        assert (await third).choices
        assert service.desk.waiting == 0
        assert service.in_flight == 0


# Beside jobs


async def submit(service, rows):
    """A job of so many rows, through the SDK."""
    lines = [
        {
            "custom_id": f"row-{n}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": ask(f"row-{n}"),
        }
        for n in range(rows)
    ]
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    file = await service.sdk.files.create(file=("input.jsonl", content), purpose="batch")
    return await service.sdk.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )


async def test_live_requests_do_not_wait_behind_jobs_and_none_fails_when_a_server_dies(serve, live):
    servers = [await serve() for _ in range(3)]
    async with live(*(server.url for server in servers), pool={"limit": 16}) as service:
        await service.ready(3, limit=15)
        for server in servers:
            server.inject(Slow(2.0), Match(text="row-"))
            server.inject(Slow(0.02), Match(text="live"))
        await submit(service, 2000)
        await until(lambda: service.in_flight >= 42)
        await asyncio.sleep(0.3)
        assert service.in_flight == 42
        times = await crowd(service, 500, servers[0])
        assert len(times) == 500
        assert median(times) < 1.0


async def crowd(service, requests, dying):
    """Many live requests, 12 at a time; when a third of them are answered, a server dies."""
    times, numbers = [], iter(range(requests))

    async def client():
        for number in numbers:
            began = time.monotonic()
            async with service.post(ask(f"live {number}")) as response:
                assert response.status == 200, await response.text()
                await response.read()
            times.append(time.monotonic() - began)
            if len(times) == requests // 3:
                await dying.die(Die(seconds=None, ending=Ending.RESET))

    await asyncio.gather(*(client() for _ in range(12)))
    return times


def ask(text):
    return {"model": MODEL, "messages": [{"role": "user", "content": text}]}


async def test_a_permit_that_a_job_gives_back_goes_to_a_live_request_first(serve, live):
    server = await serve()
    async with live(server.url, pool={"limit": 1}) as service:
        server.inject(Slow(0.3), Match(text="row-"))
        await submit(service, 50)
        await until(lambda: service.in_flight)
        began = time.monotonic()
        for number in range(3):
            async with service.post(ask(f"live {number}")) as response:
                assert response.status == 200
        assert time.monotonic() - began < 3 * 0.3 + 0.5
        assert server.peak_in_flight == 1


async def test_a_stop_lets_live_requests_end_and_takes_no_more(serve, live):
    server = await serve()
    async with live(server.url) as service:
        server.inject(Slow(0.5), Match(text="live"))
        asking = asyncio.create_task(service.chat("live"))
        await until(lambda: service.in_flight)
        service.service.request_stop()
        await asyncio.sleep(0.05)
        async with service.post() as response:
            assert response.status == 503
            assert "Retry-After" in response.headers
        assert (await asking).choices


async def test_a_request_id_that_cannot_be_a_header_is_not_passed_on_and_blames_no_server(server, live):
    async with live(server.url) as service:
        host, port = service.service.address
        body = json.dumps(ask("hello")).encode()
        for name in (b"\xff\xfe", b"a" * 2000, b"with space"):
            reader, writer = await asyncio.open_connection(host, port)
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-Id: %s\r\n" % name
            writer.write(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            answer = await asyncio.wait_for(reader.read(), 5)
            assert b" 200 " in answer.partition(b"\r\n")[0], answer
            writer.close()
        assert [each.state for each in service.pool.servers.values()] == ["active"]


async def test_bodies_that_are_open_are_bounded_together(server, live, monkeypatch):
    monkeypatch.setattr(relay, "OPEN_BYTES_MAX", 1000)
    async with live(server.url) as service:
        assert (await service.chat()).choices
        async with service.post(ask("word " * 400)) as response:
            assert response.status == 429
            assert "Retry-After" in response.headers
        assert (await service.chat()).choices


async def test_a_live_request_that_ends_servers_costs_no_row_of_a_job(serve, live):
    servers = [await serve() for _ in range(3)]
    async with live(*(server.url for server in servers), pool={"limit": 16}) as service:
        for server in servers:
            server.inject(Die(seconds=0.3), Match(text="poison"))
            server.inject(Slow(0.2), Match(text="row-"))
        job = await submit(service, 300)
        for _ in range(2):
            await until(lambda: service.in_flight > 5)
            async with service.post(ask("poison")) as response:
                assert response.status in (500, 502, 503)
        async with asyncio.timeout(30):
            while job.status not in ("completed", "failed"):
                await asyncio.sleep(0.1)
                job = await service.sdk.batches.retrieve(job.id)
        counts = job.request_counts
        assert (job.status, counts.completed, counts.failed) == ("completed", 300, 0)


async def test_a_head_that_does_not_come_to_its_end_is_not_waited_for(live, monkeypatch):
    monkeypatch.setattr(module, "HEAD_S", 0.5)
    async with live() as service:
        reader, writer = await asyncio.open_connection(*service.service.address)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nX-Slow: ")
        gone = asyncio.create_task(reader.read())
        for _ in range(50):
            writer.write(b"x")
            if (await asyncio.wait({gone}, timeout=0.1))[0]:
                break
        assert gone.done()
        assert await gone == b""
        writer.close()


async def test_an_answer_may_take_longer_than_a_head(serve, live, monkeypatch):
    monkeypatch.setattr(module, "HEAD_S", 0.2)
    server = await serve()
    async with live(server.url) as service:
        server.inject(Slow(0.6), Match(text="What is it?"))
        for _ in range(2):
            assert (await service.chat()).choices


async def test_a_client_that_reads_nothing_of_a_large_answer_is_left(scripted, live, monkeypatch):
    monkeypatch.setattr(exchange, "UNREAD_S_MAX", 0.3)
    server = await scripted(_large)
    async with live(server.url) as service:
        reader, writer = await _ask_by_hand(service)
        assert await reader.read(10)
        await until(lambda: not service.relay._open, timeout_s=5)
        assert await _read_all(reader) < LARGE, "what waited for it was dropped"
        writer.close()


async def test_a_client_that_reads_slowly_gets_the_whole_answer(scripted, live, monkeypatch):
    monkeypatch.setattr(exchange, "UNREAD_S_MAX", 0.9)
    server = await scripted(_large)
    async with live(server.url) as service:
        reader, writer = await _ask_by_hand(service)
        size, began = 0, time.monotonic()
        while size < LARGE:
            size += len(await reader.read(LARGE // 20))
            await asyncio.sleep(0.05 if time.monotonic() - began < 1.5 else 0)
        writer.close()


LARGE = 32 * 2**20


async def _large(_request):
    return web.json_response(_chat("a" * LARGE))


async def _ask_by_hand(service):
    reader, writer = await asyncio.open_connection(*service.service.address, limit=1024)
    body = json.dumps(ask("hello")).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-Id: test\r\n"
    writer.write(head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    return reader, writer


async def _read_all(reader):
    size = 0
    try:
        while chunk := await reader.read(2**20):
            size += len(chunk)
    except ConnectionError:
        return size
    return size


async def test_a_client_that_reads_nothing_of_its_stream_is_left(scripted, live, monkeypatch):
    async def flood(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(b"data: " + b"x" * 2**16 + b"\n\n")

    monkeypatch.setattr(exchange, "UNREAD_S_MAX", 0.3)
    server = await scripted(flood)
    async with live(server.url) as service:
        reader, writer = await _ask_by_hand(service)
        assert await reader.read(10)
        await until(lambda: service.in_flight)
        await until(lambda: service.in_flight == 0, timeout_s=5)
        writer.close()

import asyncio
import json
import socket
import time

import pytest

from dispatcher.config import KnownAnswer
from dispatcher.model import CanaryFault, CanaryReport, Health, ServerId, ServerSpec
from dispatcher.vllm import prober as prober_module
from dispatcher.vllm.prober import HttpProber

METRICS = b"""# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="m"} 3.0
process_start_time_seconds 1.76e9
"""
MODELS = (
    b'{"object":"list","data":[{"id":"m","root":"org/m","parent":null,"max_model_len":1024},'
    b'{"id":"alias","root":"org/m"},{"id":"bare"}]}'
)


@pytest.fixture
async def prober():
    async with HttpProber() as started:
        yield started


@pytest.fixture
async def hasty():
    """One that does not wait long, for pages that never come."""
    async with HttpProber(probe_timeout_s=0.3, connect_timeout_s=0.2) as started:
        yield started


def site(wire, pages, seen=None):
    """Serves `pages`: path -> response bytes, or a float of seconds to keep silent; 404 for all others."""

    async def handler(reader, writer):
        while (request := await wire.read_request(reader))[0]:
            if seen is not None:
                seen.append(request)
            path = request[0].split(b" ")[1].decode()
            page = pages.get(path, wire.response(b'{"detail":"Not Found"}', b"404 Not Found"))
            if isinstance(page, float):
                await asyncio.sleep(page)
                return
            writer.write(page)

    return wire.serve(handler)


def completion(**fields):
    choice = {"index": 0, "text": "x", "finish_reason": "length"}
    return json.dumps({"choices": [choice], "model": "m", **fields}).encode()


@pytest.mark.parametrize(
    ("status", "health"),
    [
        (b"200 OK", Health.UP),
        (b"404 Not Found", Health.ABSENT),
        (b"405 Method Not Allowed", Health.ABSENT),
        (b"401 Unauthorized", Health.ABSENT),
        (b"503 Service Unavailable", Health.DOWN),
        (b"500 Internal Server Error", Health.DOWN),
        (b"502 Bad Gateway", Health.DOWN),
        (b"302 Found", Health.DOWN),
    ],
)
async def test_health_by_status(wire, prober, status, health):
    server = await site(wire, {"/health": wire.response(b"", status, b"Location: /x\r\n")})
    report = await prober.probe(server)
    assert report.health is health
    assert (report.detail == "") == (health is Health.UP)


async def test_a_silent_health_page_is_slow(wire, hasty):
    server = await site(wire, {"/health": 5.0})
    began = time.monotonic()
    report = await hasty.probe(server)
    assert report.health is Health.SLOW
    assert 0.25 < time.monotonic() - began < 3


async def test_a_page_that_drips_has_the_same_time_in_all(wire, hasty):
    async def handler(reader, writer):
        await wire.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)

    began = time.monotonic()
    assert (await hasty.probe(await wire.serve(handler))).health is Health.SLOW
    assert time.monotonic() - began < 3


async def test_an_endless_page_is_given_up(wire, prober, monkeypatch):
    monkeypatch.setattr(prober_module, "PAGE_BYTES_MAX", 1000)
    server = await site(wire, {"/metrics": wire.response(b"x" * 1001), "/health": wire.response(b"x" * 1001)})
    assert await prober.scrape(server) is None
    assert (await prober.probe(server)).health is Health.UNREACHABLE


def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_closed_port_is_refused_by_every_name_of_the_host(prober, host):
    url = f"http://{host}:{closed_port()}"
    server = ServerSpec(ServerId(url), url)
    assert (await prober.probe(server)).health is Health.REFUSED
    assert (await prober.inspect(server)).health is Health.REFUSED
    assert (await prober.canary(server, "m")).fault is CanaryFault.DEAD
    assert await prober.scrape(server) is None


@pytest.mark.parametrize(
    "url", ["http://no-such-host.invalid:1", "http://[", "ftp://127.0.0.1", "", "nonsense"]
)
async def test_an_address_that_leads_nowhere_is_unreachable(prober, url):
    assert (await prober.probe(ServerSpec(ServerId("s"), url))).health is Health.UNREACHABLE


async def test_a_header_that_cannot_be_sent_raises_nothing(wire, prober):
    server = await site(wire, {"/health": wire.response()})
    spec = wire.spec(server.base_url, headers=(("X-Bad", "a\r\nb"),))
    assert (await prober.probe(spec)).health is Health.UNREACHABLE


async def test_tls_to_a_plain_port_is_unreachable(wire, prober):
    async def handler(reader, writer):
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    server = await wire.serve(handler)
    report = await prober.probe(wire.spec(server.base_url.replace("http", "https")))
    assert report.health is Health.UNREACHABLE
    assert "tls" in report.detail


async def test_a_connection_closed_without_an_answer_is_unreachable(wire, prober):
    async def handler(reader, writer):
        await wire.read_request(reader)

    assert (await prober.probe(await wire.serve(handler))).health is Health.UNREACHABLE


async def test_this_machine_s_own_lack_says_nothing_about_the_server(monkeypatch):
    def no_descriptors(*_args, **_fields):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", no_descriptors)
    server = ServerSpec(ServerId("s"), "http://127.0.0.1:9")
    async with HttpProber() as prober:
        assert (await prober.probe(server)).health is Health.UNASKED
        assert (await prober.canary(server, "m")).fault is CanaryFault.UNASKED


class JustBack:
    """Absences of a process that has only just woken up."""

    def just_over(self):
        return True


async def test_what_runs_out_as_we_wake_up_was_not_asked(wire):
    server = await site(wire, {"/health": 5.0, "/v1/completions": 5.0})
    async with HttpProber(probe_timeout_s=0.05, absences=JustBack()) as prober:
        assert (await prober.probe(server)).health is Health.UNASKED
        assert (await prober.canary(server, "m")).fault is CanaryFault.UNASKED


@pytest.mark.parametrize(
    ("number", "health", "fault"),
    [
        (socket.EAI_AGAIN, Health.UNASKED, CanaryFault.UNASKED),
        (socket.EAI_NONAME, Health.UNREACHABLE, CanaryFault.FAILED),
    ],
)
async def test_a_resolver_that_is_down_is_ours_and_a_name_that_is_not_known_the_server_s(
    prober, monkeypatch, number, health, fault
):
    async def lookup(*_args, **_fields):
        raise socket.gaierror(number, "words")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
    server = ServerSpec(ServerId("s"), "http://gpu.test:9")
    assert (await prober.probe(server)).health is health
    assert (await prober.canary(server, "m")).fault is fault


async def test_every_exchange_has_a_connection_of_its_own(wire, prober):
    connections = []

    async def handler(reader, writer):
        connections.append(writer)
        while (await wire.read_request(reader))[0]:
            writer.write(wire.response(b"{}"))

    server = await wire.serve(handler)
    for _ in range(3):
        assert (await prober.probe(server)).health is Health.UP
    assert len(connections) == 3


async def test_proxies_in_the_environment_see_nothing(wire, monkeypatch):
    seen = []
    proxy = await site(wire, {}, seen)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy.base_url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    server = await site(wire, {"/health": wire.response()})
    async with HttpProber() as prober:
        assert (await prober.probe(server)).health is Health.UP
    assert seen == []


async def test_an_inspection_reads_every_page(wire, prober):
    seen = []
    pages = {
        "/p/health": wire.response(b""),
        "/p/v1/models": wire.response(MODELS),
        "/p/is_sleeping": wire.response(b'{"is_sleeping":true}'),
        "/p/version": wire.response(b'{"version":"0.32.0"}'),
        "/p/metrics": wire.response(METRICS),
    }
    server = await site(wire, pages, seen)
    report = await prober.inspect(wire.spec(server.base_url + "/p", api_key="k"))
    assert report.health is Health.UP
    assert report.models == {"m": "org/m", "alias": "org/m", "bare": "bare"}
    assert report.context_tokens == {"m": 1024}
    assert report.sleeping is True
    assert report.version == "0.32.0"
    assert report.started_at == 1.76e9
    assert len(seen) == 5
    assert all(b"\r\nauthorization: bearer k\r\n" in head.lower() for head, _ in seen)


async def test_pages_that_are_not_there_are_unknown(wire, prober):
    report = await prober.inspect(await site(wire, {"/health": wire.response(b"")}))
    assert report.health is Health.UP
    assert (report.models, report.sleeping, report.version, report.started_at) == (None,) * 4


@pytest.mark.parametrize(
    "page", [b"", b"<html>", b"[]", b'{"data":5}', b'{"data":[{"id":5}]}', b"\xff", b"[" * 99999]
)
async def test_pages_that_cannot_be_read_are_unknown(wire, prober, page):
    names = ("/v1/models", "/is_sleeping", "/version", "/metrics")
    pages = {"/health": wire.response(b""), **dict.fromkeys(names, wire.response(page))}
    report = await prober.inspect(await site(wire, pages))
    assert report.context_tokens is None
    assert (report.models, report.sleeping, report.version, report.started_at) == (None,) * 4


async def test_an_inspection_takes_no_longer_than_one_probe(wire, hasty):
    pages = dict.fromkeys(("/health", "/v1/models", "/is_sleeping", "/version", "/metrics"), 5.0)
    began = time.monotonic()
    assert (await hasty.inspect(await site(wire, pages))).health is Health.SLOW
    assert time.monotonic() - began < 3


async def test_a_canary_asks_for_one_token(wire, prober):
    seen = []
    server = await site(wire, {"/v1/completions": wire.response(completion())}, seen)
    assert await prober.canary(server, "m") == CanaryReport()
    assert json.loads(seen[0][1]) == {"model": "m", "prompt": "1", "max_tokens": 1, "temperature": 0}
    assert len(seen) == 1


async def test_a_canary_without_a_model_names_none(wire, prober):
    seen = []
    server = await site(wire, {"/v1/completions": wire.response(completion(model="whatever"))}, seen)
    assert await prober.canary(server, None) == CanaryReport()
    assert "model" not in json.loads(seen[0][1])


async def test_a_model_that_only_embeds_is_asked_for_an_embedding(wire, prober):
    embedding = b'{"object":"list","data":[{"index":0,"embedding":[0.1]}],"model":"m"}'
    server = await site(wire, {"/v1/embeddings": wire.response(embedding)})
    assert await prober.canary(server, "m") == CanaryReport()


async def test_a_dead_engine_is_found_behind_the_second_route_too(wire, prober):
    dead = b'{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","code":500}}'
    server = await site(wire, {"/v1/embeddings": wire.response(dead, b"500 Internal Server Error")})
    report = await prober.canary(server, "m")
    assert report.fault is CanaryFault.DEAD
    assert "EngineCore" in report.detail


async def test_a_server_without_any_known_route_counts_as_alive(wire, prober):
    seen = []
    assert await prober.canary(await site(wire, {}, seen), "m") == CanaryReport()
    assert len(seen) == 4


@pytest.mark.parametrize("page", [b"<html>nope</html>", b"", b"not found"])
async def test_a_proxy_with_nothing_behind_it_is_no_server(wire, prober, page):
    answer = wire.response(page, b"404 Not Found")
    routes = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/pooling")
    report = await prober.canary(await site(wire, dict.fromkeys(routes, answer)), "m")
    assert report.fault is CanaryFault.MISMATCHED


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (b"401 Unauthorized", b'{"error":"Unauthorized"}', CanaryFault.MISMATCHED),
        (
            b"404 Not Found",
            b'{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","param":"model"}}',
            CanaryFault.MISMATCHED,
        ),
        (b"200 OK", completion(model="other"), CanaryFault.MISMATCHED),
        (b"200 OK", b"{}", CanaryFault.FAILED),
        (b"500 Internal Server Error", b"", CanaryFault.FAILED),
        (b"502 Bad Gateway", b"", CanaryFault.FAILED),
        (b"504 Gateway Timeout", b"", CanaryFault.SLOW),
        (b"429 Too Many Requests", b"", CanaryFault.BUSY),
        (
            b"503 Service Unavailable",
            b'{"error":{"message":"busy","type":"Service Unavailable"}}',
            CanaryFault.BUSY,
        ),
        (b"503 Service Unavailable", b"no healthy upstream", CanaryFault.FAILED),
        (b"501 Not Implemented", b'{"error":{"message":"no","type":"NotImplementedError"}}', None),
    ],
)
async def test_what_a_canary_s_answer_tells(wire, prober, status, body, fault):
    report = await prober.canary(await site(wire, {"/v1/completions": wire.response(body, status)}), "m")
    assert report.fault is fault
    assert bool(report.detail) == (fault is not None)


async def test_a_frozen_engine_lets_the_canary_wait(wire, hasty):
    server = await site(wire, {"/health": wire.response(b""), "/v1/completions": 5.0})
    assert (await hasty.canary(server, "m")).fault is CanaryFault.SLOW


KNOWN = KnownAnswer.model_validate({"messages": [{"role": "user", "content": "2+2?"}], "expect": "four"})
NO_CHAT = b'{"error":{"message":"no chat template","type":"BadRequestError","code":400}}'


def chat(text):
    choice = {"index": 0, "message": {"content": text}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "model": "m"}).encode()


async def test_a_known_answer_takes_one_question_and_no_other_canary(wire, prober):
    seen = []
    server = await site(wire, {"/v1/chat/completions": wire.response(chat("four"))}, seen)
    assert await prober.canary(server, "m", KNOWN) == CanaryReport()
    assert [head.split(b" ")[1] for head, _ in seen] == [b"/v1/chat/completions"]


async def test_a_false_answer_is_told_and_nothing_else_is_asked(wire, prober):
    seen = []
    server = await site(wire, {"/v1/chat/completions": wire.response(chat("five"))}, seen)
    report = await prober.canary(server, "m", KNOWN)
    assert report == CanaryReport(CanaryFault.WRONG, "answered 'five', where 'four' was to be heard")
    assert len(seen) == 1


async def test_a_model_that_only_embeds_has_no_answer_to_give_and_passes_by_its_one_token(wire, prober):
    embedding = b'{"object":"list","data":[{"index":0,"embedding":[0.1]}],"model":"m"}'
    server = await site(wire, {"/v1/embeddings": wire.response(embedding)})
    assert await prober.canary(server, "m", KNOWN) == CanaryReport()


async def test_a_server_without_any_known_route_has_no_answer_to_give_either(wire, prober):
    assert await prober.canary(await site(wire, {}), "m", KNOWN) == CanaryReport()


async def test_a_model_that_writes_but_refuses_the_question_is_not_trusted(wire, prober):
    pages = {
        "/v1/chat/completions": wire.response(NO_CHAT, b"400 Bad Request"),
        "/v1/completions": wire.response(completion()),
    }
    report = await prober.canary(await site(wire, pages), "m", KNOWN)
    assert report == CanaryReport(CanaryFault.MISMATCHED, "refuses the known question: no chat template")


@pytest.mark.parametrize(
    ("status", "fault"),
    [(b"429 Too Many Requests", CanaryFault.BUSY), (b"500 Internal Server Error", CanaryFault.FAILED)],
)
async def test_a_refused_question_does_not_hide_what_the_one_token_finds(wire, prober, status, fault):
    pages = {
        "/v1/chat/completions": wire.response(NO_CHAT, b"400 Bad Request"),
        "/v1/completions": wire.response(b"", status),
    }
    assert (await prober.canary(await site(wire, pages), "m", KNOWN)).fault is fault


async def test_a_scrape_reads_the_figures(wire, prober):
    telemetry = await prober.scrape(await site(wire, {"/metrics": wire.response(METRICS)}))
    assert telemetry.running == 3
    assert telemetry.waiting is None
    assert telemetry.started_at == 1.76e9


async def test_without_a_metrics_page_there_is_no_telemetry(wire, prober):
    assert await prober.scrape(await site(wire, {})) is None

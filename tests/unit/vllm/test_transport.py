import asyncio
import contextlib
import socket
import struct
import warnings

import pytest
import uvloop

from dispatcher.model import Answer, Break, BreakKind, Request, ServerId, ServerSpec
from dispatcher.vllm import breaks
from dispatcher.vllm.transport import AiohttpTransport

ROW = Request(0, "a", "/v1/chat/completions", "m", b'{"model":"m"}')


@pytest.fixture
async def transport():
    async with AiohttpTransport() as started:
        yield started


def answering(wire, *payloads, then_close=False):
    """Answers each request of a connection with the next payload, the last one for all that follow."""

    async def handler(reader, writer):
        left = list(payloads)
        while (await wire.read_request(reader))[0]:
            writer.write(left.pop(0) if len(left) > 1 else left[0])
            await writer.drain()
            if then_close:
                return

    return handler


def reset(writer):
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def kind_of(transport, server, timeout_s=2.0, row=ROW):
    ending = await transport.send(server, row, "id", timeout_s)
    assert type(ending) is Break, ending
    assert ending.detail
    return ending.kind


async def test_an_answer_comes_back_whole_and_the_request_carries_its_headers(wire, transport):
    seen = []

    async def handler(reader, writer):
        seen.append(await wire.read_request(reader))
        headers = (
            b"Content-Type: application/json; charset=utf-8\r\nX-Request-Id: theirs\r\nRetry-After: 7\r\n"
        )
        writer.write(wire.response(b'{"a":1}', headers=headers))

    server = await wire.serve(handler)
    server = wire.spec(server.base_url, api_key="k", headers=(("X-Team", "t"),))
    answer = await transport.send(server, ROW, "ours", 2)
    assert answer == Answer(200, b'{"a":1}', "application/json; charset=utf-8", "theirs", 7.0)
    head, body = seen[0]
    assert body == ROW.body
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    for line in (
        b"Authorization: Bearer k",
        b"X-Team: t",
        b"X-Request-Id: ours",
        b"Content-Type: application/json",
    ):
        assert line in head.split(b"\r\n")


async def test_an_answer_without_a_request_id_gets_ours(wire, transport):
    server = await wire.serve(answering(wire, wire.response()))
    assert (await transport.send(server, ROW, "ours", 2)).request_id == "ours"


async def test_a_path_prefix_stays_before_the_route(wire, transport):
    heads = []

    async def handler(reader, writer):
        heads.append((await wire.read_request(reader))[0])
        writer.write(wire.response())

    server = await wire.serve(handler)
    await transport.send(wire.spec(server.base_url + "/prefix"), ROW, "id", 2)
    assert heads[0].startswith(b"POST /prefix/v1/chat/completions ")


async def test_a_changed_key_is_used_at_once(wire, transport):
    heads = []

    async def handler(reader, writer):
        while (request := await wire.read_request(reader))[0]:
            heads.append(request[0])
            writer.write(wire.response())

    url = (await wire.serve(handler)).base_url
    await transport.send(wire.spec(url, api_key="old"), ROW, "id", 2)
    await transport.send(wire.spec(url, api_key="new"), ROW, "id", 2)
    assert b"Bearer old" in heads[0]
    assert b"Bearer new" in heads[1]


@pytest.mark.parametrize("status", [b"301 Moved", b"307 Temporary Redirect", b"429 Too Many", b"503 Busy"])
async def test_every_status_is_an_answer_and_redirects_are_not_followed(wire, transport, status):
    requests = []

    async def handler(reader, writer):
        requests.append(await wire.read_request(reader))
        writer.write(wire.response(b"x", status, b"Location: /elsewhere\r\n"))

    ending = await transport.send(await wire.serve(handler), ROW, "id", 2)
    assert ending.status == int(status[:3])
    assert ending.body == b"x"
    assert len(requests) == 1


async def test_cookies_are_not_kept(wire, transport):
    heads = []

    async def handler(reader, writer):
        while (request := await wire.read_request(reader))[0]:
            heads.append(request[0])
            writer.write(wire.response(headers=b"Set-Cookie: a=b; Path=/\r\n"))

    server = await wire.serve(handler)
    await transport.send(server, ROW, "id", 2)
    await transport.send(server, ROW, "id", 2)
    assert b"cookie" not in heads[1].lower()


async def test_proxies_in_the_environment_see_nothing(wire, monkeypatch):
    seen = []

    async def proxy(reader, writer):
        seen.append(await reader.read(100))
        writer.write(wire.response(status=b"503 Proxy"))

    proxy_url = (await wire.serve(proxy)).base_url
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy_url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    server = await wire.serve(answering(wire, wire.response()))
    async with AiohttpTransport() as transport:
        assert (await transport.send(server, ROW, "id", 2)).status == 200
    assert seen == []


async def test_a_large_request_is_sent_whole_and_without_a_warning(wire, transport):
    seen = []

    async def handler(reader, writer):
        seen.append(await wire.read_request(reader))
        writer.write(wire.response())

    row = Request(0, "a", "/v1/completions", None, b"x" * (3 * 2**20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (await transport.send(await wire.serve(handler, limit=2**23), row, "id", 5)).status == 200
    assert seen[0][1] == row.body


async def test_a_large_answer_arrives_whole(wire, transport):
    body = b"y" * (5 * 2**20)
    assert (
        await transport.send(await wire.serve(answering(wire, wire.response(body))), ROW, "id", 5)
    ).body == body


async def test_a_chunked_answer_arrives_whole(wire, transport):
    payload = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    assert (await transport.send(await wire.serve(answering(wire, payload)), ROW, "id", 2)).body == b"{}"


async def test_an_empty_answer_is_an_answer(wire, transport):
    assert (
        await transport.send(await wire.serve(answering(wire, wire.response(b""))), ROW, "id", 2)
    ).body == b""


@pytest.mark.parametrize("announced", [True, False])
async def test_an_answer_over_the_limit_is_not_read_to_its_end(wire, announced):
    closed = asyncio.Event()

    async def handler(reader, writer):
        await wire.read_request(reader)
        head = b"Content-Length: 999999999" if announced else b"Transfer-Encoding: chunked"
        writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
        chunk = b"z" * 1000 if announced else b"3e8\r\n" + b"z" * 1000 + b"\r\n"
        try:
            while True:
                writer.write(chunk)
                await writer.drain()
        except ConnectionError:
            closed.set()

    async with AiohttpTransport(answer_bytes_max=10_000) as transport:
        assert await kind_of(transport, await wire.serve(handler)) is BreakKind.PROTOCOL
        await asyncio.wait_for(closed.wait(), 20)


async def test_answers_that_are_too_much_together_are_a_local_fault_and_leave_nothing_behind(wire):
    whole = wire.response(b"z" * 6000)
    held = asyncio.Event()

    async def handler(reader, writer):
        await wire.read_request(reader)
        writer.write(whole[:-1])
        await held.wait()
        writer.write(whole[-1:])

    async with AiohttpTransport(open_bytes_max=10_000) as transport:
        server = await wire.serve(handler)
        first = asyncio.create_task(transport.send(server, ROW, "1", 5))
        await asyncio.sleep(0.05)
        assert await kind_of(transport, server) is BreakKind.LOCAL
        held.set()
        assert (await first).body == b"z" * 6000
        assert (await transport.send(server, ROW, "3", 5)).body == b"z" * 6000


async def test_a_closed_port_is_refused(wire, transport):
    with socket.socket() as taken:  # bound and not listening: no one else can take the port
        taken.bind(("127.0.0.1", 0))
        server = wire.spec(f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert await kind_of(transport, server) is BreakKind.REFUSED


async def test_a_name_that_does_not_resolve(wire, transport):
    assert await kind_of(transport, wire.spec("http://no-such-host.invalid:1")) is BreakKind.UNRESOLVED


@pytest.mark.parametrize("url", ["http://[", "http://127.0.0.1:99999", "ftp://127.0.0.1", "nonsense", ""])
async def test_an_address_that_cannot_be_one_raises_nothing(wire, transport, url):
    assert await kind_of(transport, wire.spec(url)) is BreakKind.UNRESOLVED


async def test_a_header_that_cannot_be_sent_raises_nothing(wire, transport):
    server = await wire.serve(answering(wire, wire.response()))
    server = wire.spec(server.base_url, headers=(("X-Bad", "a\r\nb"),))
    assert await kind_of(transport, server) is BreakKind.UNRESOLVED


@contextlib.contextmanager
def full_backlog():
    """A listener whose backlog is full: the kernel ignores further handshakes."""
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.settimeout(0)
            filler.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        yield ServerSpec(ServerId(url), url)


async def test_a_server_that_does_not_accept_times_out_connecting():
    with full_backlog() as server:
        async with AiohttpTransport(connect_timeout_s=0.3) as transport:
            assert await kind_of(transport, server) is BreakKind.CONNECT_TIMED_OUT


async def test_tls_to_a_plain_port(wire, transport):
    async def handler(reader, writer):
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    server = await wire.serve(handler)
    assert await kind_of(transport, wire.spec(server.base_url.replace("http", "https"))) is BreakKind.TLS


async def test_a_reset_after_the_request(wire, transport):
    async def handler(reader, writer):
        await wire.read_request(reader)
        reset(writer)

    assert await kind_of(transport, await wire.serve(handler)) is BreakKind.RESET


async def test_a_reset_of_a_reused_connection_is_no_stale_one(wire, transport):
    async def handler(reader, writer):
        await wire.read_request(reader)
        writer.write(wire.response())
        await wire.read_request(reader)
        reset(writer)

    server = await wire.serve(handler)
    assert (await transport.send(server, ROW, "id", 2)).status == 200
    assert await kind_of(transport, server) is BreakKind.RESET


async def test_a_close_after_the_request_on_a_fresh_connection_is_a_reset(wire, transport):
    async def handler(reader, writer):
        await wire.read_request(reader)

    assert await kind_of(transport, await wire.serve(handler)) is BreakKind.RESET


async def test_a_close_after_the_request_on_a_reused_connection_is_stale(wire, transport):
    async def handler(reader, writer):
        await wire.read_request(reader)
        writer.write(wire.response())
        await wire.read_request(reader)

    server = await wire.serve(handler)
    assert (await transport.send(server, ROW, "id", 2)).status == 200
    assert await kind_of(transport, server) is BreakKind.STALE
    assert (await transport.send(server, ROW, "id", 2)).status == 200, "the next one is fresh"


async def test_a_reused_connection_closed_long_after_the_request_is_a_reset(wire, transport, monkeypatch):
    monkeypatch.setattr(breaks, "STALE_WINDOW_S", 0.01)

    async def handler(reader, writer):
        await wire.read_request(reader)
        writer.write(wire.response())
        await wire.read_request(reader)
        await asyncio.sleep(0.03)

    server = await wire.serve(handler)
    assert (await transport.send(server, ROW, "id", 2)).status == 200
    assert await kind_of(transport, server) is BreakKind.RESET


class Away:
    """Absences of a process that woke up just now, after so many seconds."""

    def __init__(self, seconds):
        self.seconds = seconds

    def seconds_since(self, _then):
        return self.seconds

    def just_over(self):
        return True


async def test_the_time_in_which_we_stood_still_makes_no_reset_of_a_stale_connection(wire, monkeypatch):
    monkeypatch.setattr(breaks, "STALE_WINDOW_S", 0.01)

    async def handler(reader, writer):
        await wire.read_request(reader)
        writer.write(wire.response())
        await wire.read_request(reader)
        await asyncio.sleep(0.03)

    server = await wire.serve(handler)
    async with AiohttpTransport(absences=Away(60.0)) as transport:
        assert (await transport.send(server, ROW, "id", 2)).status == 200
        assert await kind_of(transport, server) is BreakKind.STALE


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nContent-", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"]
)
async def test_a_reused_connection_closed_within_the_head_is_not_stale(wire, transport, head):
    async def handler(reader, writer):
        await wire.read_request(reader)
        writer.write(wire.response())
        await wire.read_request(reader)
        writer.write(head)

    server = await wire.serve(handler)
    assert (await transport.send(server, ROW, "id", 2)).status == 200
    assert await kind_of(transport, server) in (BreakKind.RESET, BreakKind.TRUNCATED, BreakKind.PROTOCOL)


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_body_shorter_than_announced_is_truncated(wire, transport, end):
    async def handler(reader, writer):
        await wire.read_request(reader)
        writer.write(wire.response(b'{"half', length=100))
        await writer.drain()
        if end == "reset":
            await asyncio.sleep(0.01)
            reset(writer)

    assert await kind_of(transport, await wire.serve(handler)) is BreakKind.TRUNCATED


async def test_a_chunked_body_without_its_end_is_truncated(wire, transport):
    payload = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a'
    assert (
        await kind_of(transport, await wire.serve(answering(wire, payload, then_close=True)))
        is BreakKind.TRUNCATED
    )


@pytest.mark.parametrize(
    "garbage", [b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"\x00\x01\x02\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"]
)
async def test_what_is_not_http_is_a_protocol_fault(wire, transport, garbage):
    assert (
        await kind_of(transport, await wire.serve(answering(wire, garbage, then_close=True)))
        is BreakKind.PROTOCOL
    )


async def test_the_request_s_own_timeout(wire, transport):
    async def handler(reader, writer):
        await reader.read(-1)

    assert await kind_of(transport, await wire.serve(handler), timeout_s=0.05) is BreakKind.TIMED_OUT


async def test_the_timeout_covers_the_body(wire, transport):
    async def handler(reader, writer):
        await wire.read_request(reader)
        writer.write(wire.response(b"{", length=100))
        await reader.read(-1)

    assert await kind_of(transport, await wire.serve(handler), timeout_s=0.05) is BreakKind.TIMED_OUT


async def test_a_timeout_that_ran_out_while_we_stood_still_is_nobody_s_fault(wire):
    async def handler(reader, writer):
        await reader.read(-1)

    server = await wire.serve(handler)
    async with AiohttpTransport(absences=Away(5.0)) as transport:
        assert await kind_of(transport, server, timeout_s=0.05) is BreakKind.AWAY


async def test_a_connect_timeout_that_ran_out_while_we_stood_still_is_nobody_s_fault():
    with full_backlog() as server:
        async with AiohttpTransport(connect_timeout_s=0.05, absences=Away(5.0)) as transport:
            assert await kind_of(transport, server) is BreakKind.AWAY


@pytest.mark.parametrize(
    ("number", "kind"),
    [(socket.EAI_AGAIN, BreakKind.OFFLINE), (socket.EAI_NONAME, BreakKind.UNRESOLVED)],
)
async def test_a_resolver_that_is_down_is_ours_and_a_name_that_is_not_known_the_server_s(
    wire, transport, monkeypatch, number, kind
):
    async def lookup(*_args, **_fields):
        raise socket.gaierror(number, "words")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
    assert await kind_of(transport, wire.spec("http://gpu.test:9")) is kind


async def test_without_descriptors_it_is_this_machine_s_fault(wire, transport, monkeypatch):
    def no_descriptors(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", no_descriptors)
    assert await kind_of(transport, wire.spec("http://127.0.0.1:9")) is BreakKind.LOCAL


@contextlib.contextmanager
def listening():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0)
        yield listener, ServerSpec(ServerId("s"), f"http://127.0.0.1:{listener.getsockname()[1]}")


def drained(connection):
    """What the peer has sent until its end; BlockingIOError where it has not closed."""
    connection.settimeout(0)
    received = b""
    while chunk := connection.recv(2**20):
        received += chunk
    return received


async def accepted(listener):
    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
    return connection


async def a_timed_out_attempt_is_closed_on_return():
    with listening() as (listener, server):
        async with AiohttpTransport() as transport:
            ending = await transport.send(server, ROW, "id", 0.03)
            assert ending.kind is BreakKind.TIMED_OUT
            connection, _ = listener.accept()
            with connection:
                assert drained(connection).endswith(ROW.body)


async def a_cancelled_attempt_is_closed_on_return():
    with listening() as (listener, server):
        async with AiohttpTransport() as transport:
            sending = asyncio.create_task(transport.send(server, ROW, "id", None))
            with await accepted(listener) as connection:
                await asyncio.sleep(0.02)
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending
                assert drained(connection).endswith(ROW.body)


async def an_attempt_is_closed_though_its_request_could_not_be_written():
    """A hung server reads nothing: what was not written must not keep the socket open."""
    row = Request(0, "a", "/v1/completions", None, b"x" * (16 * 2**20))
    with listening() as (listener, server):
        async with AiohttpTransport() as transport:
            assert (await transport.send(server, row, "id", 0.1)).kind is BreakKind.TIMED_OUT
            connection, _ = listener.accept()
            with connection, contextlib.suppress(ConnectionResetError):
                assert len(drained(connection)) < len(row.body)


@pytest.mark.parametrize(
    "scenario",
    [
        a_timed_out_attempt_is_closed_on_return,
        a_cancelled_attempt_is_closed_on_return,
        an_attempt_is_closed_though_its_request_could_not_be_written,
    ],
)
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_attempt_that_ends_early_leaves_no_connection(scenario, run):
    run(scenario())


async def test_cancelling_one_attempt_leaves_the_others_alone(wire, transport):
    arrived, release = asyncio.Semaphore(0), asyncio.Event()

    async def handler(reader, writer):
        while (await wire.read_request(reader))[0]:
            arrived.release()
            await release.wait()
            writer.write(wire.response())

    server = await wire.serve(handler)
    sends = [asyncio.create_task(transport.send(server, ROW, str(n), 5)) for n in range(8)]
    for _ in sends:
        await arrived.acquire()
    sends[0].cancel()
    release.set()
    endings = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(endings[0], asyncio.CancelledError)
    assert [ending.status for ending in endings[1:]] == [200] * 7


async def test_an_early_answer_to_a_large_request_does_not_spoil_the_next(wire, transport):
    peers = set()

    async def handler(reader, writer):
        peers.add(writer.get_extra_info("peername"))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(wire.response(b"", b"413 Too Large"))
        await writer.drain()
        await asyncio.sleep(0.05)

    server = await wire.serve(handler)
    row = Request(0, "a", "/v1/completions", None, b"x" * (8 * 2**20))
    for _ in range(3):
        assert (await transport.send(server, row, "id", 2)).status == 413
    assert len(peers) == 3


async def test_connections_are_reused_and_concurrent_sends_are_not_limited(wire):
    peers, gate = set(), asyncio.Event()

    async def handler(reader, writer):
        peers.add(writer.get_extra_info("peername"))
        while (await wire.read_request(reader))[0]:
            if len(peers) >= 150:
                gate.set()
            await gate.wait()
            writer.write(wire.response())

    server = await wire.serve(handler, backlog=200)
    async with AiohttpTransport() as transport:
        for _ in range(2):
            endings = await asyncio.gather(*(transport.send(server, ROW, "id", 5) for _ in range(150)))
            assert all(ending.status == 200 for ending in endings)
    assert len(peers) == 150

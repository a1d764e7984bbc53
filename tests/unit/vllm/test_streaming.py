import asyncio

import pytest

from dispatcher.model import NO_TOKENS, Answer, Break, BreakKind, Request, Tokens
from dispatcher.vllm.streaming import TAIL_BYTES, Tail
from dispatcher.vllm.transport import AiohttpTransport

ASKED = Request(0, "", "/v1/chat/completions", "m", b'{"model":"m","stream":true}')
HEAD = (
    b"HTTP/1.1 %s\r\nContent-Type: text/event-stream\r\nX-Request-Id: theirs\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


class ClientLeftError(Exception):
    pass


class Sink:
    def __init__(self, chunks_max=None):
        self.head = None
        self.chunks = []
        self.chunks_max = chunks_max

    async def begin(self, status, content_type, request_id):
        self.head = (status, content_type, request_id)

    async def write(self, chunk):
        self.chunks.append(chunk)
        if len(self.chunks) == self.chunks_max:
            raise ClientLeftError


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def streaming(wire, *chunks, status=b"200 OK", end=b"0\r\n\r\n", closed=None):
    async def handler(reader, writer):
        await wire.read_request(reader)
        writer.write(HEAD % status)
        for data in chunks:
            writer.write(chunk(data))
            await writer.drain()
            await asyncio.sleep(0.02)
        writer.write(end)
        await writer.drain()
        if closed is not None:
            await reader.read()
            closed.set()

    return handler


@pytest.fixture
async def transport():
    async with AiohttpTransport() as started:
        yield started


async def test_a_stream_is_handed_on_chunk_by_chunk(wire, transport):
    server = await wire.serve(streaming(wire, b"data: 1\n\n", b"data: 2\n\n"))
    sink = Sink()
    ending = await transport.send(server, ASKED, "ours", 5.0, sink)
    assert ending == Answer(200, b"", "text/event-stream")
    assert sink.head == (200, "text/event-stream", "theirs")
    assert sink.chunks == [b"data: 1\n\n", b"data: 2\n\n"]


async def test_an_answer_that_is_no_stream_comes_whole_and_leaves_the_sink_alone(wire, transport):
    server = await wire.serve(streaming(wire, b"data: error\n\n", status=b"500 Internal Server Error"))
    sink = Sink()
    ending = await transport.send(server, ASKED, "ours", 5.0, sink)
    assert type(ending) is Answer
    assert (ending.status, ending.body) == (500, b"data: error\n\n")
    assert sink.head is None


async def test_a_stream_that_breaks_off_is_a_break_after_what_came(wire, transport):
    server = await wire.serve(streaming(wire, b"data: 1\n\n", end=b""))
    sink = Sink()
    ending = await transport.send(server, ASKED, "ours", 5.0, sink)
    assert type(ending) is Break
    assert ending.kind is BreakKind.TRUNCATED
    assert sink.chunks == [b"data: 1\n\n"]


async def test_a_sink_that_fails_ends_the_request_at_the_server(wire, transport):
    closed = asyncio.Event()
    server = await wire.serve(streaming(wire, b"data: 1\n\n", b"data: 2\n\n", end=b"", closed=closed))
    with pytest.raises(ClientLeftError):
        await transport.send(server, ASKED, "ours", 5.0, Sink(chunks_max=1))
    await asyncio.wait_for(closed.wait(), 20)


def tail(*chunks):
    tail = Tail()
    for chunk in chunks:
        tail.add(chunk)
    return tail


USED = (
    b'data: {"id":"a","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def event(text):
    return b'data: {"choices":[{"delta":{"content":"%b"}}],"usage":null}\n\n' % text


def test_a_streams_last_events_tell_its_tokens():
    assert tail(event(b"x"), USED, DONE).tokens() == Tokens(7, 9)
    whole = event(b"x") + USED.replace(b"\n", b"\r\n") + DONE
    assert tail(*(whole[at : at + 5] for at in range(0, len(whole), 5))).tokens() == Tokens(7, 9)


def test_the_last_event_of_a_response_tells_its_tokens():
    used = (
        b'{"type":"response.completed","response":{"output":[],"usage":{"input_tokens":3,"output_tokens":4}}}'
    )
    assert tail(b"event: response.completed\ndata: " + used + b"\n\n").tokens() == Tokens(3, 4)


@pytest.mark.parametrize(
    "said", [b"", DONE, event(b"x"), b'data: {"usage": 5}\n\n', b'data: {"usage": {"pro']
)
def test_a_stream_that_does_not_tell_has_no_tokens(said):
    assert tail(event(b"x"), said).tokens() == NO_TOKENS


def test_of_a_long_stream_its_end_is_kept_and_no_more():
    long = tail(*[event(b"x" * 1000)] * 10_000, USED, DONE)
    assert long.tokens() == Tokens(7, 9)
    assert sum(map(len, long._chunks)) < TAIL_BYTES + 2000

"""Ingest against plain models of it: the standard library's json, and lists in memory."""

import asyncio
import json
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dispatcher.ingest.payloads import FilePayloads
from dispatcher.ingest.scan import scan
from dispatcher.ingest.sharding import ScanLimits
from dispatcher.jsonl import split_lines
from dispatcher.model import Job, JobId, Lease
from dispatcher.request_line import Head, LineCode, LineFault, parse_request

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)
bodies = st.dictionaries(st.text(max_size=4), values, max_size=3)


def wrapped(body):
    return b'{"custom_id":"a","method":"POST","url":"/score","body":%b}' % body


def is_strict(text):
    def refuse(name):
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=refuse, parse_int=float)
    except ValueError:
        return False
    return True


@QUICK
@given(bodies, st.booleans())
def test_a_generated_body_is_accepted_as_the_standard_library_accepts_it(body, ascii_only):
    raw = json.dumps({**body, "stream": None, "model": None}, ensure_ascii=ascii_only)
    try:
        content = raw.encode()
    except UnicodeEncodeError:
        return  # a raw surrogate: no bytes of a file spell it
    found = parse_request(wrapped(content))
    if is_strict(raw):
        assert found == Head("a", "/score", None, content)
    else:
        assert found.code is LineCode.NOT_JSON


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_damaged_line_is_json_here_exactly_where_it_is_in_the_standard_library(data):
    body = data.draw(bodies)
    content = bytearray(wrapped(json.dumps(body).encode()))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from(
                [b"", b'"', b"\\", b"\\ud83d", b"\\u", b"{", b"]", b",", b"0", b"-", b"e", b"\x00", b"\t"]
            )
            | st.binary(max_size=2)
        )
    found = parse_request(bytes(content))
    try:
        text = content.decode()
    except UnicodeDecodeError:
        assert found.code is LineCode.NOT_UTF8
        return
    refused = isinstance(found, LineFault) and found.code is LineCode.NOT_JSON
    assert refused is not is_strict(text)
    if isinstance(found, Head):
        assert repr(json.loads(found.body)) == repr(json.loads(text)["body"])


@QUICK
@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"\xef\xbb\xbf", b" ", "\u2028".encode(), b"xyz"])),
    st.lists(st.integers(1, 9), min_size=1),
)
@example([b"\xef\xbb\xbf", b"\n"], [1])
def test_lines_are_the_same_whatever_the_chunks(pieces, sizes):
    content = b"".join(pieces)
    chunks, at = [], 0
    while at < len(content):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(content[at : at + size])
        at += size
    lines = list(split_lines(chunks))
    plain = content.removeprefix(b"\xef\xbb\xbf")
    expected = plain.split(b"\n")
    assert [line.content for line in lines] == (expected if expected[-1] else expected[:-1])
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    start = len(content) - len(plain)
    for line in lines:
        assert line.offset == start
        start += line.length
    assert start == len(content) or not lines


input_lines = st.lists(
    st.one_of(
        st.sampled_from([b"", b" ", b"\r", b"{", b"[]", b"\xff", b"\xef\xbb\xbf", b'{"custom_id":"a"}']),
        st.sampled_from("abcdefghij").map(
            lambda name: b'{"custom_id":"%b","method":"POST","url":"/score","body":{ }}' % name.encode()
        ),
    ),
    max_size=25,
)


@QUICK
@given(
    input_lines,
    st.integers(1, 5),
    st.integers(1, 200),
    st.none() | st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
def test_what_is_read_from_the_shards_is_the_file_less_what_was_rejected(
    lines, shard_size, shard_bytes_max, tail_size, byte_order_mark, last_line_end
):
    content = b"\xef\xbb\xbf" * byte_order_mark + b"\n".join(lines) + b"\n" * last_line_end
    limits = ScanLimits(shard_size=shard_size, shard_bytes_max=shard_bytes_max, tail_size=tail_size)
    shards, repeated = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.jsonl"
        path.write_bytes(content)
        report = scan(
            path, Path(folder), shards.extend, on_repeated=repeated.extend, skip_invalid=True, limits=limits
        )
        leases = [Lease(Job(JobId("job")), shard, 1) for shard in shards]
        requests = asyncio.run(read_all(FilePayloads(path), leases))
    kept = [(each.index, each.custom_id) for each in requests if each.index not in repeated]
    assert kept == expected_rows(content)
    assert report.rows == len(kept)
    assert report.lines == sum(shard.count for shard in shards) == report.rows + report.rejected
    assert sum(shard.requests for shard in shards) == report.rows + len(repeated)
    assert all(shard.count <= max(shard_size, tail_size or 1) for shard in shards)
    assert all(shard.length <= shard_bytes_max or shard.count == 1 for shard in shards)


async def read_all(payloads, leases):
    return [each for lease in leases for each in await payloads.read(lease)]


def expected_rows(content):
    """A plain model: the first line of each id, with its index among non-blank lines."""
    rows, seen = [], set()
    filled = [line for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()]
    for index, line in enumerate(filled):
        found = parse_request(line)
        if isinstance(found, Head) and found.custom_id not in seen:
            seen.add(found.custom_id)
            rows.append((index, found.custom_id))
    return rows

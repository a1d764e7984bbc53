import json

import pytest

from dispatcher.errors import StorageError
from dispatcher.ingest.payloads import FilePayloads, with_model
from dispatcher.ingest.scan import scan
from dispatcher.ingest.sharding import ScanLimits
from dispatcher.model import Job, JobId, Lease, Request


def request(custom_id, body=b"{}"):
    return b'{"custom_id":"%b","method":"POST","url":"/score","body":%b}' % (custom_id, body)


class Input:
    def __init__(self, tmp_path, content, **limits):
        self.path = tmp_path / "input.jsonl"
        self.path.write_bytes(content)
        self.shards = []
        scan(self.path, tmp_path, self.shards.extend, skip_invalid=True, limits=ScanLimits(**limits))

    async def read(self, **settings):
        job = Job(JobId("job"), **settings)
        payloads = FilePayloads(self.path)
        return [each for shard in self.shards for each in await payloads.read(Lease(job, shard, 1))]


async def test_requests_come_back_with_their_indexes_and_their_own_bytes(tmp_path):
    body = b'{ "model":"m", "x": 1.50 }'
    source = Input(tmp_path, b"\xef\xbb\xbf\n" + request(b"a", body) + b"\r\n\n{\n" + request(b"b"))
    assert await source.read() == [
        Request(0, "a", "/score", "m", body),
        Request(2, "b", "/score", None, b"{}"),
    ]


async def test_a_byte_order_mark_in_the_middle_is_a_rejected_line_and_no_change(tmp_path):
    source = Input(tmp_path, request(b"a") + b"\n\xef\xbb\xbf\n" + request(b"b"), shard_size=1)
    assert [each.custom_id for each in await source.read()] == ["a", "b"]


async def test_a_shard_without_requests_is_not_read(tmp_path):
    source = Input(tmp_path, b"{\n{\n")
    source.path.unlink()
    assert await source.read() == []


async def test_the_jobs_model_stands_in_for_a_missing_one(tmp_path):
    lines = [request(b"a", b'{"n":1}'), request(b"b", b'{"model":null}'), request(b"c", b'{"model":"own"}')]
    found = await Input(tmp_path, b"\n".join(lines)).read(model="default")
    assert [(each.model, each.body) for each in found] == [
        ("default", b'{"model":"default","n":1}'),
        ("default", b'{"model":"default"}'),
        ("own", b'{"model":"own"}'),
    ]


async def test_the_jobs_override_replaces_every_model(tmp_path):
    lines = [request(b"a", b'{"n":1}'), request(b"b", b'{"model":"own"}'), request(b"c", b'{"model":"new"}')]
    found = await Input(tmp_path, b"\n".join(lines)).read(model="default", model_override="new")
    assert [(each.model, each.body) for each in found] == [
        ("new", b'{"model":"new","n":1}'),
        ("new", b'{"model":"new"}'),
        ("new", b'{"model":"new"}'),
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", b'{"model":"n"}'),
        (b"{ }", b'{"model":"n" }'),
        (b'{ "x" : 1.50 }', b'{"model":"n", "x" : 1.50 }'),
        (b'{"x":"\\ud83d"}', b'{"model":"n","x":"\\ud83d"}'),
        (b'{"x": 1e999 , "model":"m", "y":[1, 2]}', b'{"x":1e999,"model":"n","y":[1, 2]}'),
        (b'{"x":"\\ud83d", "mod\\u0065l":"m"}', b'{"x":"\\ud83d","model":"n"}'),
        (b'{"model":"a","model":"b"}', b'{"model":"n"}'),
        (b'{"a":{"model":"inner"}}', b'{"model":"n","a":{"model":"inner"}}'),
    ],
)
def test_setting_the_model_leaves_other_members_as_they_are(body, expected):
    assert with_model(body, "n") == expected
    assert json.loads(expected)["model"] == "n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-10], "the file ends here"),
        (lambda content: content.replace(b"POST", b"PUT "), "request 0 from there: method"),
        (lambda content: content.replace(b"\n", b" "), "1 lines stand where 2 were"),
    ],
)
async def test_an_input_that_has_changed_is_a_storage_error(tmp_path, change, message):
    source = Input(tmp_path, request(b"a") + b"\n" + request(b"b") + b"\n")
    source.path.write_bytes(change(source.path.read_bytes()))
    with pytest.raises(StorageError, match=message) as caught:
        await source.read()
    assert str(source.path) in str(caught.value)


async def test_an_input_that_is_gone_is_a_storage_error(tmp_path):
    source = Input(tmp_path, request(b"a"))
    source.path.unlink()
    with pytest.raises(StorageError, match="No such file"):
        await source.read()

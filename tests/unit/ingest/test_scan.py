import hashlib
import json
from pathlib import Path

import pytest

from dispatcher.errors import Fault, InputError, StorageError
from dispatcher.ingest.findings import OTHER_MODELS, ModelCounts
from dispatcher.ingest.scan import scan
from dispatcher.ingest.sharding import ScanLimits
from dispatcher.model import Shard
from dispatcher.request_line import Head


def request(custom_id, url="/score", **body):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}).encode()


class Scanned:
    def __init__(self, tmp_path, content, **options):
        self.path = tmp_path / "input.jsonl"
        self.path.write_bytes(content)
        self.shards, self.repeated = [], []
        self.report = scan(
            self.path, tmp_path, self.shards.extend, on_repeated=self.repeated.extend, **options
        )


def test_a_clean_file_is_counted_and_cut(tmp_path):
    content = b"\n".join([request("a", model="m"), request("b", "/pooling"), b"", request("c", model="m")])
    scanned = Scanned(tmp_path, content, limits=ScanLimits(shard_size=2))
    report = scanned.report
    assert (report.rows, report.lines, report.blank, report.shards, report.rejected) == (3, 3, 1, 2, 0)
    assert report.bytes == len(content)
    assert report.sha256 == hashlib.sha256(content).hexdigest()
    assert report.by_model == {("/score", "m"): 2, ("/pooling", None): 1}
    assert report.by_url == {"/score": 2, "/pooling": 1}
    assert [shard.count for shard in scanned.shards] == [2, 1]
    assert content[scanned.shards[1].offset :] == request("c", model="m")


def test_an_empty_file_has_no_rows_and_no_shards(tmp_path):
    scanned = Scanned(tmp_path, b"")
    assert (scanned.report.rows, scanned.report.shards, scanned.shards) == (0, 0, [])


def test_the_hostile_file_is_read_row_by_row(tmp_path):
    lines = [
        b"\xef\xbb\xbf" + request("bom") + b"\r",
        b"",
        b" \t\r",
        '{"custom_id":"\u2028\u2029\u0085","method":"POST","url":"/score","body":{}}'.encode(),
        request("null\0", prompt="\0"),
        request("half", prompt="\ud83d"),
        request("long", prompt="x" * 5_000_000),
        b'{"custom_id":"\xff"}',
        request("last"),
    ]
    scanned = Scanned(tmp_path, b"\n".join(lines), skip_invalid=True)
    assert (scanned.report.rows, scanned.report.lines, scanned.report.blank) == (6, 7, 2)
    (fault,) = scanned.report.faults
    assert fault.where == "line 8"
    assert [shard.rejected for shard in scanned.shards] == [(5,)]


def test_faults_refuse_the_file_with_the_first_twenty_by_line(tmp_path):
    lines = [request(str(number)) if number % 2 else b"{" for number in range(60)]
    with pytest.raises(InputError, match=r"30 lines are no valid request") as caught:
        Scanned(tmp_path, b"\n".join(lines))
    assert caught.value.fault_count == 30
    assert [fault.where for fault in caught.value.faults] == [f"line {number}" for number in range(1, 41, 2)]


def test_with_a_route_given_every_other_url_is_a_fault_with_its_line_and_code(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(request(name, url) for name, url in (("a", "/score"), ("b", "/rerank"))))
    with pytest.raises(InputError) as refused:
        scan(path, tmp_path, lambda _: None, limits=ScanLimits(route="/score"))
    (fault,) = refused.value.faults
    assert (fault.line, fault.code) == (2, "url_mismatched")
    assert '"/rerank"' in fault.message


def test_a_repeated_id_is_refused_naming_both_lines(tmp_path):
    content = b"\n".join([request("a"), b"", request("b"), request("a")])
    with pytest.raises(InputError, match="1 line is no valid request") as caught:
        Scanned(tmp_path, content)
    assert caught.value.faults == (
        Fault("line 4", 'custom_id "a" is in line 1 already; give every line one of its own'),
    )


def test_with_skipping_the_first_of_an_id_stays_and_later_ones_are_handed_over(tmp_path):
    ids = ["a", "b", "a", "c", "b", "a"]
    content = b"\n".join([request(each, model=each) for each in ids])
    scanned = Scanned(tmp_path, content, skip_invalid=True, limits=ScanLimits(shard_size=4))
    assert sorted(scanned.repeated) == [2, 4, 5]
    assert (scanned.report.rows, scanned.report.rejected) == (3, 3)
    assert scanned.report.by_model == {("/score", each): 1 for each in "abc"}
    assert [shard.rejected for shard in scanned.shards] == [(), ()]


def test_a_rejected_lines_id_is_free_for_another_line(tmp_path):
    content = b"\n".join([request("a", stream=True), request("a")])
    scanned = Scanned(tmp_path, content, skip_invalid=True)
    assert (scanned.report.rows, scanned.report.rejected, scanned.repeated) == (1, 1, [])


def test_rejected_lines_are_reported_in_a_file(tmp_path):
    content = b"\n".join([request("a"), b"{", request("b", stream=True), request("a")])
    rejected_path = tmp_path / "rejected.jsonl"
    Scanned(tmp_path, content, skip_invalid=True, rejected_path=rejected_path)
    rejected = [json.loads(line) for line in rejected_path.read_text().splitlines()]
    assert [(each["line"], each["custom_id"], each["code"]) for each in rejected] == [
        (2, None, "not_json"),
        (3, "b", "stream_not_allowed"),
        (4, "a", "custom_id_duplicate"),
    ]
    assert all(each["message"] for each in rejected)


def test_a_line_over_the_limit_is_rejected_in_a_shard_of_its_own(tmp_path):
    content = request("a") + b"\n" + b"x" * 5000 + b"\n" + request("b")
    limits = ScanLimits(line_bytes_max=1000, shard_bytes_max=1000)
    scanned = Scanned(tmp_path, content, skip_invalid=True, limits=limits)
    assert scanned.report.faults[0].message.startswith("the line is longer than 1000 bytes")
    start = len(request("a")) + 1
    assert scanned.shards[1] == Shard(1, 1, 1, start, 5001, (1,))


def test_shards_come_in_order_and_in_batches(tmp_path):
    path = tmp_path / "input.jsonl"
    path.write_bytes(b"\n".join(request(str(number)) for number in range(600)))
    batches = []
    scan(path, tmp_path, batches.append, limits=ScanLimits(shard_size=1))
    assert [len(batch) for batch in batches] == [256, 256, 88]
    assert [shard.first_index for batch in batches for shard in batch] == list(range(600))


def test_an_exception_from_a_callback_ends_the_scan_and_leaves_nothing(tmp_path):
    path = tmp_path / "input.jsonl"
    path.write_bytes(request("a"))

    def refuse(_):
        raise KeyError

    with pytest.raises(KeyError):
        scan(path, tmp_path, refuse)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_read_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="No such file"):
        scan(tmp_path / "absent", tmp_path, print)


def test_a_report_that_cannot_be_written_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="cannot write the rejected lines"):
        Scanned(tmp_path, b"", rejected_path=tmp_path / "absent" / "rejected.jsonl")


def test_a_full_disk_under_the_report_is_a_storage_error(tmp_path):
    for count in (1, 1000):
        with pytest.raises(StorageError, match="No space left"):
            Scanned(tmp_path, b"{\n" * count, rejected_path=Path("/dev/full"))


def test_a_callbacks_own_error_is_not_taken_for_ours(tmp_path):
    path = tmp_path / "input.jsonl"
    path.write_bytes(request("a"))

    def fail(_):
        raise PermissionError

    with pytest.raises(PermissionError):
        scan(path, tmp_path, fail, rejected_path=tmp_path / "rejected.jsonl")


def test_models_are_counted_up_to_a_limit():
    counts = ModelCounts(2)
    heads = [Head("id", "/score", model, b"{}") for model in ("a", None, "b", "c", "a")]
    for head in heads:
        counts.add(head)
    counts.add(heads[2], -1)
    assert counts.counts == {("/score", "a"): 2, ("/score", None): 1, ("/score", OTHER_MODELS): 1}


class StoppedError(Exception):
    pass


@pytest.mark.parametrize(
    "names", [[f"{number}" for number in range(3000)], ["same"] * 3000], ids=["unique", "repeated"]
)
def test_a_scan_ends_soon_after_it_is_told_to_whatever_it_does(tmp_path, names):
    content = b"\n".join(map(request, names))
    calls = 0

    def count(stop_at=None):
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise StoppedError

    try:
        Scanned(tmp_path, content, check=count)
    except InputError:
        assert names[0] == names[1]
    every = calls
    assert every > 250, "each part of the ids is a chance to stop"
    for stop_at in (1, 2, 3, every):
        calls = 0
        with pytest.raises(StoppedError):
            Scanned(tmp_path, content, check=lambda stop_at=stop_at: count(stop_at))
        assert list(tmp_path.iterdir()) == [tmp_path / "input.jsonl"]

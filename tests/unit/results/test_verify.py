import gzip
import json
import random

import pytest

from dispatcher.errors import StorageError
from dispatcher.results import verify as verify_module
from dispatcher.results.verify import verify


def request(custom_id, **changes):
    return {"custom_id": custom_id, "method": "POST", "url": "/score", "body": {}, **changes}


def success(custom_id, **changes):
    response = {"status_code": 200, "request_id": None, "body": {"choices": []}}
    return {"id": "r", "custom_id": custom_id, "response": response, "error": None, **changes}


def failure(custom_id, **changes):
    error = {"code": "timeout", "message": "no answer"}
    return {"id": "r", "custom_id": custom_id, "response": None, "error": error, **changes}


class Files:
    def __init__(self, folder):
        self.folder = folder

    def write(self, name, lines):
        path = self.folder / name
        encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        path.write_bytes(b"".join(line + b"\n" for line in encoded))
        return path

    def verify(self, requests, outputs, errors):
        return verify(
            self.write("in", requests),
            self.write("out", outputs),
            self.write("err", errors),
            work_dir=self.folder,
        )


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def problems(report):
    return [(fault.where.rpartition("/")[2], fault.message) for fault in report.problems]


def test_a_complete_run_is_proven(files):
    report = files.verify(
        [request("a"), request("b"), request("c")], [success("a"), success("c")], [failure("b")]
    )
    assert report.ok
    assert (report.requests, report.succeeded, report.failed) == (3, 2, 1)


def test_nothing_asked_and_nothing_answered_is_complete(files):
    assert files.verify([], [], []).ok


def test_invalid_blank_and_repeated_lines_of_the_input_owe_nothing(files):
    requests = [b"{", b"", request("a"), b"\xff", request("b", url="/none"), request("a"), request("c")]
    report = files.verify(requests, [success("a"), success("c")], [])
    assert report.ok
    assert report.requests == 2


def test_a_request_without_an_outcome_is_missing(files):
    report = files.verify([request("a"), b"", request("b")], [success("a")], [])
    assert report.missing == 1
    assert problems(report) == [("in:3", 'custom_id "b" has no outcome')]


@pytest.mark.parametrize(
    ("outputs", "errors", "where", "first"),
    [
        ([success("a"), success("a"), success("b")], [], "out:2", "out:1"),
        ([success("a"), success("b"), success("a")], [], "out:3", "out:1"),
        ([success("a"), success("b")], [failure("a")], "err:1", "out:1"),
        ([], [failure("a"), failure("a"), failure("b")], "err:2", "err:1"),
    ],
)
def test_a_second_outcome_is_repeated_and_names_the_first(files, outputs, errors, where, first):
    report = files.verify([request("a"), request("b")], outputs, errors)
    assert (report.repeated, report.missing, report.disordered) == (1, 0, 0)
    ((found, message),) = problems(report)
    assert found == where
    assert message.startswith('custom_id "a" has an outcome already, in ')
    assert message.endswith(f"/{first}")


def test_an_outcome_without_a_request_is_unknown(files):
    report = files.verify([request("a")], [success("x"), success("a")], [failure("y")])
    assert (report.unknown, report.missing, report.disordered) == (2, 0, 0)
    assert problems(report) == [
        ("out:1", 'custom_id "x" is not in the input'),
        ("err:1", 'custom_id "y" is not in the input'),
    ]


def test_outcomes_out_of_order_are_found_in_each_file(files):
    requests = [request(each) for each in "abcd"]
    report = files.verify(requests, [success("b"), success("a")], [failure("d"), failure("c")])
    assert (report.disordered, report.missing, report.repeated, report.unknown) == (2, 0, 0, 0)
    assert problems(report) == [
        ("out:2", 'custom_id "a" is not where the input has it'),
        ("err:2", 'custom_id "c" is not where the input has it'),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "blank"),
        (b'{"id":"r"', "not an outcome in strict JSON"),
        (json.dumps(success("a")).encode()[:-1] + b',"x":NaN}', "not an outcome in strict JSON"),
        (json.dumps(success("a")).encode()[:-1] + b',"x":"\xff"}', "not UTF-8: byte 0xff"),
        (json.dumps(success("a")).encode() * 2, "trailing characters"),
        (b'{"id":"r","x":' + b"[" * 100_000, "recursion"),
        (success("a", id=5), "id"),
        ({"custom_id": "a", "response": None, "error": None}, "`id`"),
        (success("a", response=None), "response is null in the output file"),
        (success("a", response={"status_code": 500, "body": {}}), "status_code 500"),
        (success("a", response={"status_code": None, "body": {}}), "status_code None"),
        (success("a", response={"status_code": 200, "body": None}), "response.body is not an object"),
        (success("a", response={"status_code": 200, "body": "{}"}), "response.body is not an object"),
        (success("a", response={"status_code": 200}), "`body`"),
        (failure("a"), "an error stands in the output file"),
    ],
)
def test_a_line_of_the_output_that_is_no_success_is_malformed(files, line, message):
    report = files.verify([request("a")], [line], [])
    assert report.malformed == 1
    assert report.succeeded == 0
    assert message in dict(problems(report))["out:1"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (success("a"), "error is null in the error file"),
        (failure("a", error={"code": "timeout"}), "`message`"),
        (failure("a", error="timeout"), "error"),
    ],
)
def test_a_line_of_the_error_file_that_is_no_error_is_malformed(files, line, message):
    report = files.verify([request("a")], [], [line])
    assert (report.malformed, report.failed) == (1, 0)
    assert message in dict(problems(report))["err:1"]


def test_a_malformed_line_whose_id_is_known_does_not_make_its_request_missing(files):
    assert files.verify([request("a")], [failure("a")], []).missing == 0


def test_an_error_may_carry_the_servers_answer(files):
    response = {"status_code": 400, "request_id": "x", "body": {"error": "no"}}
    assert files.verify([request("a")], [], [failure("a", response=response)]).ok


@pytest.mark.parametrize("text", ["\ud83d", "\\\ud83d", "\U0001f600\udc00", "\0\u2028"])
def test_strange_characters_in_an_answer_are_json(files, text):
    response = {"status_code": 200, "request_id": None, "body": {"text": text}}
    assert files.verify([request("\U0001f600")], [success("\U0001f600", response=response)], []).ok


def test_raw_line_separators_in_an_answer_end_no_line(files):
    line = json.dumps(success("a", x="\u2028\u0085"), ensure_ascii=False).encode()
    assert files.verify([request("a")], [line], []).ok


def test_twenty_of_each_kind_are_listed_by_line_and_all_are_counted(files):
    requests = [request(f"r{number}") for number in range(100)]
    outputs = [success(f"u{number}") for number in range(50)]
    report = files.verify(requests, outputs, [b"{"] * 30)
    assert (report.missing, report.unknown, report.malformed) == (100, 50, 30)
    listed = [where for where, _ in problems(report)]
    assert listed == [f"{name}:{line}" for name in ("in", "out", "err") for line in range(1, 21)]


def test_without_an_error_file_there_are_no_errors(files):
    paths = files.write("in", [request("a")]), files.write("out", [success("a")])
    assert verify(*paths, None, work_dir=files.folder).ok
    with pytest.raises(StorageError, match="No such file"):
        verify(*paths, files.folder / "absent", work_dir=files.folder)


def test_an_archive_is_verified_like_a_file(files):
    path = files.folder / "in.gz"
    path.write_bytes(gzip.compress(files.write("in", [request("a"), request("b")]).read_bytes()))
    report = verify(path, files.write("out", [success("a")]), None, work_dir=files.folder)
    assert problems(report) == [("in.gz:2", 'custom_id "b" has no outcome')]


def test_few_ids_in_memory_at_a_time_find_the_same(files, monkeypatch):
    rng = random.Random(7)
    requests = [request(f"r{number}") for number in range(2000)]
    outputs = [success(each["custom_id"]) for each in requests if rng.random() < 0.9]
    rng.shuffle(outputs)
    outputs += rng.sample(outputs, 40) + [success(f"u{number}") for number in range(30)]
    whole = files.verify(requests, outputs, [])
    monkeypatch.setattr(verify_module, "IDS_MAX", 1)
    assert files.verify(requests, outputs, []) == whole
    assert (whole.requests, whole.repeated, whole.unknown) == (2000, 40, 30)
    assert whole.missing == 2000 - (len(outputs) - 70)


def test_no_intermediate_data_is_left(files):
    files.verify([request("a")], [], [])
    assert sorted(path.name for path in files.folder.iterdir()) == ["err", "in", "out"]

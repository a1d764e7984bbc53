import json
from contextlib import contextmanager

import pytest

from dispatcher.cli import partial
from dispatcher.cli.connection import ServiceError, _lines
from dispatcher.cli.exits import Exit
from dispatcher.cli.partial import fetch_partial

JOB = {"id": "batch_1", "status": "in_progress", "counts": {"succeeded": 2, "failed": 1, "total": 9}}


def line(name, error=None):
    return json.dumps({"custom_id": name, "response": None, "error": error}).encode()


class Service:
    def __init__(self, *lines, job=JOB):
        self.job, self._lines = job, lines

    def get(self, path):
        assert path == "/jobs/batch_1"
        return self.job

    @contextmanager
    def lines(self, path):
        assert path == "/jobs/batch_1/results"
        yield iter(self._lines)


@pytest.fixture
def places(tmp_path):
    return tmp_path / "out.jsonl", tmp_path / "out.errors.jsonl"


def test_what_is_finished_is_written_to_its_file_in_the_order_it_comes(places):
    output, errors = places
    sent = line("a"), line("b", {"code": "timeout"}), line("c")
    fetched = fetch_partial(Service(*sent), "batch_1", output, None)
    assert output.read_bytes() == sent[0] + b"\n" + sent[2] + b"\n"
    assert errors.read_bytes() == sent[1] + b"\n"
    assert (fetched.status, fetched.so_far) == (Exit.RESUMABLE, (2, 1))
    assert list(fetched.lines())[1:] == [
        "  so far 2 rows, and 1 that failed: it has not ended",
        f"  output {output}",
        f"  errors {errors}",
    ]


def test_again_it_replaces_the_files_and_leaves_none_without_rows(places):
    output, errors = places
    fetch_partial(Service(line("a", {"code": "timeout"})), "batch_1", output, None)
    assert (output.exists(), errors.exists()) == (False, True)
    fetched = fetch_partial(Service(line("a")), "batch_1", output, None)
    assert (output.read_bytes(), errors.exists()) == (line("a") + b"\n", False)
    assert (fetched.output, fetched.errors) == (output, None)


def test_lines_that_break_off_leave_the_files_as_they_were(places):
    output, _ = places
    output.write_bytes(b"earlier\n")
    with pytest.raises(ServiceError):
        fetch_partial(Service(line("a"), line("b")[:-5]), "batch_1", output, None)
    assert output.read_bytes() == b"earlier\n"
    assert [path.name for path in output.parent.iterdir()] == ["out.jsonl"]


def test_of_a_job_that_has_ended_its_files_are_written(places, monkeypatch):
    asked = []
    monkeypatch.setattr(partial, "fetch_job", lambda _service, *given: asked.append(given))
    fetch_partial(Service(job={**JOB, "status": "completed"}), "batch_1", *places)
    assert asked == [("batch_1", *places)]


def test_lines_end_at_newlines_alone():
    text = b'{"a": "\xe2\x80\xa8\r\x0b"}\n\n{}\nend'
    expected = [b'{"a": "\xe2\x80\xa8\r\x0b"}', b"", b"{}", b"end"]
    assert list(_lines(text[at : at + 3] for at in range(0, len(text), 3))) == expected

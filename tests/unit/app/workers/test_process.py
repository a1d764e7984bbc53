"""What a worker says, in the run's own log."""

import pytest
from structlog.testing import capture_logs

from dispatcher.app.workers.process import log_line


def logged(line):
    with capture_logs() as logs:
        log_line(line, 2)
    return logs


def test_an_event_of_a_worker_is_that_event_with_its_number():
    line = b'{"server":"http://a","event":"server_evicted","level":"warning","timestamp":"2026-01-01T00:00:00Z"}\n'
    assert logged(line) == [
        {"server": "http://a", "event": "server_evicted", "log_level": "warning", "worker": 2}
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"Traceback (most recent call last):\n",
        b'{"event":"odd","level":"none"}\n',
        b"[1, 2]\n",
        b'{"level":"info"}',
        b"\xff torn",
    ],
)
def test_anything_else_is_what_it_said(line):
    [entry] = logged(line)
    assert (entry["event"], entry["worker"]) == ("worker_said", 2)
    assert entry["text"] == line.decode(errors="replace").rstrip()


def test_an_empty_line_says_nothing():
    assert logged(b"\n") == []

import pytest

from dispatcher.cli import watching
from dispatcher.cli.connection import Connection, ServiceError
from dispatcher.cli.exits import Exit
from dispatcher.cli.job_lines import exit_of, job_line


def job(status="in_progress", succeeded=0, failed=0, total=10, **fields):
    counts = {"total": total, "succeeded": succeeded, "failed": failed, "in_flight": 3}
    rates = {"rows_per_s": 0.0, "eta_s": None, "starving": False, "obstacle": None, "paused": False}
    return {
        "id": "batch_1",
        "status": status,
        "counts": counts,
        "validation_errors": [],
        "errors": {},
        **rates,
        **fields,
    }


class Service:
    """Answers with these, in order; a text is an error."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def get(self, path):
        assert path == "/jobs/batch_1"
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            raise ServiceError(answer)
        return answer


@pytest.fixture
def time(monkeypatch):
    """Virtual: sleeping is what passes time."""
    now = [0.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(watching.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def test_a_line_is_written_every_ten_seconds_and_when_the_status_changes(time, capsys):
    looks = [job(succeeded=number) for number in range(12)]
    ended = watching.watch_job(Service(*looks, job("completed", 10)), "batch_1", json=False)
    assert ended is Exit.DONE
    assert [line.split("  ")[-1] for line in capsys.readouterr().out.splitlines()] == [
        "0/10 rows, 0.0 %, 3 in flight",
        "10/10 rows, 100 %, 3 in flight",
        "10/10 rows, 100 %",
    ]


def test_with_json_each_change_is_a_line(time, capsys):
    looks = [job(), job(), job(succeeded=1), job("completed", 10)]
    watching.watch_job(Service(*looks), "batch_1", json=True)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_service_that_restarts_is_waited_for_and_that_is_said_once(time, capsys):
    answers = [job(), *["down"] * 119, job("completed", 9, 1, errors={"timeout": 1})]
    assert watching.watch_job(Service(*answers), "batch_1", json=False) is Exit.FAILED_ROWS
    said = capsys.readouterr()
    assert said.out.endswith(f"  {'timeout':<20} {1:>12}\n")
    assert said.err == "dispatcher: down\ndispatcher: waiting for the service, for 120 s at most\n"


def test_a_service_that_does_not_come_back_is_given_up_after_two_minutes(time):
    with pytest.raises(ServiceError):
        watching.watch_job(Service(job(), *["down"] * 1000), "batch_1", json=False)
    assert time[0] == 121.0


def test_a_user_who_has_seen_enough_leaves_the_job_running(time, monkeypatch, capsys):
    def interrupted(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", interrupted)
    assert watching.watch_job(Service(job()), "batch_1", json=False) is Exit.RESUMABLE
    assert "the job goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        (job("completed", 10), Exit.DONE),
        (job("completed", 9, 1), Exit.FAILED_ROWS),
        (job("expired", 9, 1), Exit.FAILED_ROWS),
        (job("cancelled", 0, 10), Exit.FAILED_ROWS),
        (job("failed", total=0), Exit.USAGE),
        (job("finalizing", 10), Exit.RESUMABLE),
    ],
)
def test_the_exit_status_says_how_the_job_ended(ended, status):
    assert exit_of(ended) is status


def test_a_line_says_how_fast_a_job_is_and_when_it_will_be_done():
    line = job_line(job(succeeded=1, failed=2, rows_per_s=5.0, eta_s=61, starving=True))
    assert line == (
        "batch_1  in_progress  3/10 rows, 30.0 %, 2 failed, 3 in flight, 5.00 rows/s, 1m 01s left, starving"
    )


def test_a_job_that_is_kept_shows_why_and_no_rate_of_the_minute_before():
    moved = {"succeeded": 3, "rows_per_s": 5.0, "eta_s": 61}
    stands = "3/10 rows, 30.0 %, 3 in flight"
    assert job_line(job(**moved, obstacle="disk full")) == f"batch_1  in_progress  {stands}, disk full"
    assert job_line(job(**moved, paused=True)) == f"batch_1  paused       {stands}"


@pytest.mark.parametrize(
    ("url", "key"), [("http://a b", None), ("http://127.0.0.1:1", "kéy"), ("nowhere", None)]
)
def test_a_url_or_key_that_cannot_be_used_is_an_error_without_the_key(url, key):
    with pytest.raises(ServiceError) as caught, Connection(url, key) as service:
        service.get("/jobs")
    assert "kéy" not in str(caught.value)

from dataclasses import replace

import pytest

from dispatcher.api.jobs_picture import OPEN_SHOWN_MAX, picture_jobs
from dispatcher.jobs.details import Details, LineError
from dispatcher.jobs.overview import Overview
from dispatcher.jobs.view import Counts, JobView

DETAILS = Details(
    owner="anna",
    input_file_id="file-1",
    endpoint="/v1/embeddings",
    completion_window="24h",
    window_s=86_400.0,
    expires_at=87_400.0,
)
VIEW = JobView(
    id="batch_1",
    owner="anna",
    status="in_progress",
    paused=False,
    priority=0,
    weight=1.0,
    limit=None,
    max_attempts=3,
    model=None,
    endpoint="/v1/embeddings",
    metadata=None,
    counts=Counts(100, 30, 10, 5),
    prompt_tokens=0,
    completion_tokens=0,
    errors={"timeout": 10},
    rows_per_s=2.0,
    tokens_per_s=50.0,
    eta_s=30.0,
    slack_s=500.0,
    starving=False,
    obstacle=None,
    created_at=1000.0,
    expires_at=87_400.0,
    ended_at=None,
    details=DETAILS,
)


def card(**changes):
    return picture_jobs(Overview([replace(VIEW, **changes)], total=1), 1060.0).shown[0]


def test_open_jobs_come_first_by_priority_then_those_that_ended_last():
    going = [replace(VIEW, id="low"), replace(VIEW, id="high", priority=5)]
    ended = [replace(VIEW, id="new", ended_at=1050.0), replace(VIEW, id="old", ended_at=1010.0)]
    picture = picture_jobs(Overview(going, ended, 4), 1060.0)
    assert [job.id for job in picture.shown] == ["high", "low", "new", "old"]


def test_of_many_jobs_some_are_shown_and_all_are_counted():
    going = [VIEW, replace(VIEW, paused=True), *[replace(VIEW, paused=True)] * 298]
    picture = picture_jobs(Overview(going, [replace(VIEW, ended_at=1001.0)], 999), 1060.0)
    assert len(picture.shown) == OPEN_SHOWN_MAX + 1
    assert (picture.total, picture.running, picture.rows_left) == (999, 1, 300 * 60)


@pytest.mark.parametrize(
    ("status", "shown"), [("in_progress", "paused"), ("validating", "paused"), ("cancelling", "cancelling")]
)
def test_a_paused_job_is_called_so_until_it_ends(status, shown):
    assert card(paused=True, status=status).status == shown


@pytest.mark.parametrize(
    ("metadata", "name"),
    [(None, ""), ({"team": "x"}, ""), ({"name": "reviews"}, "reviews"), ({"title": "t", "name": "n"}, "n")],
)
def test_a_job_is_called_by_its_metadata(metadata, name):
    assert card(metadata=metadata).name == name


def test_times_are_told_as_ages():
    assert (card().age_s, card().ended_ago_s) == (60.0, None)
    assert card(ended_at=1050.0).ended_ago_s == 10.0


def test_a_job_says_what_holds_it_up_or_what_was_wrong_with_its_input():
    assert card().message == ""
    assert card(obstacle="the disk is full", starving=True).message == "the disk is full"
    assert "nothing in flight" in card(starving=True).message
    wrong = replace(VIEW, details=Details(**_fields(errors=(LineError("invalid", "no custom_id", 17),))))
    assert picture_jobs(Overview([wrong], total=1), 1060.0).shown[0].message == "line 17: no custom_id"


def _fields(**changes):
    return {name: getattr(DETAILS, name) for name in DETAILS.__struct_fields__} | changes

import pytest

from dispatcher.dispatch.ledger import Standing
from dispatcher.jobs.details import Details, moved, read_details, stored
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.life import Stage
from dispatcher.jobs.view import Now, view_of
from dispatcher.model import Job, JobId, Tally


def kept(stage=Stage.IN_PROGRESS, **details):
    made = Details(
        owner="ann",
        input_file_id="file-1",
        endpoint="/v1/completions",
        completion_window="1h",
        window_s=3600,
        expires_at=1000.0 + 3600,
        stage=stage,
        reached={stage.value: 1010.0},
        **details,
    )
    return Kept(Job(JobId("job"), priority=2, limit=8), made, 1000.0, requests=100, shards=1, busy_at=0.0)


def now(rows_per_s=0.0, succeeded=0, in_flight=0, monotonic=0.0, over_s=60.0):
    tally = Tally(succeeded=succeeded, failed=1, errors={"timeout": 1})
    standing = Standing(tally, 0, rows_per_s, 9.0, over_s)
    return Now(1600.0, monotonic, {JobId("job"): standing}, {JobId("job"): in_flight})


def test_what_is_left_at_the_present_rate_gives_the_end_and_the_slack():
    view = view_of(kept(), now(rows_per_s=0.5, succeeded=49, in_flight=3))
    assert (view.counts.total, view.counts.succeeded, view.counts.failed) == (100, 49, 1)
    assert (view.counts.in_flight, view.errors) == (3, {"timeout": 1})
    assert (view.eta_s, view.slack_s) == (100.0, 4600.0 - 1600.0 - 100.0)


def test_a_rate_over_a_few_seconds_is_not_good_enough_for_an_end():
    view = view_of(kept(), now(rows_per_s=0.5, over_s=9.9))
    assert (view.rows_per_s, view.eta_s, view.slack_s) == (0.5, None, None)
    assert view_of(kept(), now(rows_per_s=0.5, over_s=10.0)).eta_s is not None


def test_a_job_that_will_be_late_has_a_negative_slack():
    assert view_of(kept(), now(rows_per_s=0.001)).slack_s < 0


@pytest.mark.parametrize(
    ("job", "rate"),
    [(kept(), 0.0), (kept(paused=True), 1.0), (kept(Stage.FINALIZING), 1.0), (kept(Stage.CANCELLED), 1.0)],
)
def test_where_nothing_moves_there_is_no_end_in_sight(job, rate):
    view = view_of(job, now(rows_per_s=rate))
    assert (view.eta_s, view.slack_s) == (None, None)


def test_a_job_starves_that_has_had_nothing_in_flight_for_a_minute():
    assert not view_of(kept(), now(monotonic=59.9)).starving
    assert view_of(kept(), now(monotonic=60.0)).starving
    assert not view_of(kept(), now(monotonic=60.0, in_flight=1)).starving
    assert not view_of(kept(paused=True), now(monotonic=60.0)).starving


def test_what_holds_up_all_jobs_is_said_of_each_that_would_be_sent_otherwise():
    def obstacle(job, in_flight=0):
        held_up = Now(1600.0, 0.0, {}, {JobId("job"): in_flight}, held_up="the disk is full")
        return view_of(job, held_up).obstacle

    assert obstacle(kept()) == "the disk is full"
    assert obstacle(kept(), in_flight=1) is None
    assert obstacle(kept(paused=True)) is None
    assert obstacle(kept(Stage.COMPLETED)) is None


def test_an_ended_job_shows_what_was_written():
    view = view_of(
        kept(Stage.COMPLETED, result=Tally(90, 10, 5, 6)), Now(1600.0, 0.0, standings={}, in_flight={})
    )
    assert (view.counts.succeeded, view.counts.failed, view.prompt_tokens) == (90, 10, 5)
    assert (view.status, view.ended_at) == ("completed", 1010.0)


def test_details_come_back_from_the_queue_as_they_went():
    details = moved(kept(result=Tally(1, 2, 3, 4, {"timeout": 2})).details, Stage.EXPIRED, 7.0)
    assert read_details(stored(details)) == details
    assert details.at(Stage.EXPIRED) == 7.0


def test_a_job_that_is_not_the_services_has_no_details():
    assert read_details({"settings": {}, "input": {}}) is None

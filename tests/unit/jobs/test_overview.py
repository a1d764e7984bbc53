from types import SimpleNamespace

import pytest
from kept_jobs import kept_job

from dispatcher.jobs import overview
from dispatcher.jobs.life import Stage
from dispatcher.jobs.overview import ENDED_SHOWN_MAX, EVERYBODY, Overviews
from dispatcher.jobs.view import Now
from dispatcher.model import JobId

NOW = Now(1600.0, 0.0, standings={}, in_flight={})


def kept(name, stage=Stage.IN_PROGRESS, owner="ann", at=1000.0):
    return kept_job(name, owner=owner, stage=stage, reached={stage.value: at})


@pytest.fixture
def keeper():
    return SimpleNamespace(jobs={}, moves=0)


def put(keeper, *jobs):
    keeper.jobs.update({job.id: job for job in jobs})
    keeper.moves += 1


def ids(views):
    return [view.id for view in views]


def test_everybody_has_all_jobs_and_each_owner_their_own(keeper):
    put(keeper, kept("a"), kept("b", owner="bob"), kept("c", Stage.COMPLETED))
    found = Overviews(keeper).all(NOW)
    assert (ids(found[EVERYBODY].open), ids(found[EVERYBODY].ended)) == (["b", "a"], ["c"])
    assert (ids(found["ann"].open), ids(found["ann"].ended), found["ann"].total) == (["a"], ["c"], 2)
    assert (ids(found["bob"].open), ids(found["bob"].ended), found["bob"].total) == (["b"], [], 1)


def test_of_many_that_have_ended_the_last_are_shown_and_all_are_counted(keeper):
    put(keeper, *(kept(f"{n}", Stage.CANCELLED, at=float(n)) for n in range(500)))
    found = Overviews(keeper).all(NOW)["ann"]
    assert ids(found.ended) == [f"{n}" for n in range(499, 499 - ENDED_SHOWN_MAX, -1)]
    assert found.total == 500


def test_jobs_that_have_ended_are_gone_through_only_when_a_job_has_moved(keeper, monkeypatch):
    viewed = []
    monkeypatch.setattr(overview, "view_of", lambda job, _now: viewed.append(job.id) or job)
    ended = [kept(f"{n}", Stage.COMPLETED) for n in range(3)]
    put(keeper, kept("open"), *ended)
    overviews = Overviews(keeper)
    for _ in range(10):
        overviews.all(NOW)
    assert sorted(viewed) == ["0"] * 2 + ["1"] * 2 + ["2"] * 2 + ["open"] * 10
    del keeper.jobs[JobId("1")]
    keeper.moves += 1
    assert ids(overviews.all(NOW)["ann"].ended) == ["0", "2"]

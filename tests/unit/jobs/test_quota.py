import pytest
from kept_jobs import kept_job

from dispatcher.dispatch.ledger import Standing
from dispatcher.jobs.life import Stage
from dispatcher.jobs.quota import excess
from dispatcher.model import Tally


def kept(name, requests=0, *, owner="ann", stage=Stage.IN_PROGRESS, rows_max=100):
    return kept_job(name, requests=requests, owner=owner, stage=stage, rows_max=rows_max)


def test_a_job_within_the_limit_is_fine_and_one_above_it_is_told_the_limit():
    new = kept("new")
    assert excess(new, 100, [new], {}) is None
    error = excess(new, 1101, [new], {})
    assert error.code == "queued_rows_exceeded"
    assert "1,101 requests: this key may have 100 rows queued, and has 0" in error.message


def test_without_a_limit_every_job_is_fine():
    assert excess(kept("new", rows_max=None), 10**9, [], {}) is None


@pytest.mark.parametrize(
    ("other", "queued"),
    [
        (kept("other", 30), 20),
        (kept("other", 30, owner="bob"), 0),
        (kept("other", 30, stage=Stage.COMPLETED), 0),
        (kept("other", 0, stage=Stage.VALIDATING), 0),
    ],
)
def test_the_rows_of_the_owners_open_jobs_count_until_they_have_an_outcome(other, queued):
    new, standings = kept("new"), {}
    if other.requests and other.stage is Stage.IN_PROGRESS:
        standings[other.id] = Standing(Tally(7, 3))
    assert excess(new, 100 - queued, [other, new], standings) is None
    assert f"has {queued}" in excess(new, 101 - queued, [other, new], standings).message

from types import SimpleNamespace

import pytest

from dispatcher.api.admission import check_limits
from dispatcher.api.errors import ApiError
from dispatcher.config import KeyLimits
from dispatcher.jobs.life import Stage


def job(stage=Stage.IN_PROGRESS, total=0, done=0):
    counts = SimpleNamespace(total=total, succeeded=done, failed=0)
    return SimpleNamespace(details=SimpleNamespace(stage=stage), counts=counts)


def refusal(limits, *jobs):
    try:
        check_limits(limits, jobs)
    except ApiError as error:
        return error.status, error.code
    return None


@pytest.mark.parametrize("stage", [Stage.VALIDATING, Stage.IN_PROGRESS, Stage.CANCELLING, Stage.FINALIZING])
def test_a_job_that_has_not_ended_is_open(stage):
    assert refusal(KeyLimits(open_jobs=1), job(stage)) == (429, "open_jobs_exceeded")


@pytest.mark.parametrize("stage", [Stage.COMPLETED, Stage.FAILED, Stage.CANCELLED, Stage.EXPIRED])
def test_a_job_that_has_ended_counts_for_nothing(stage):
    assert refusal(KeyLimits(open_jobs=1, queued_rows=1), job(stage, total=9)) is None


def test_rows_are_queued_until_they_have_an_outcome():
    limits = KeyLimits(queued_rows=10)
    assert refusal(limits, job(total=100, done=95), job(total=4)) is None
    assert refusal(limits, job(total=100, done=95), job(total=5)) == (429, "queued_rows_exceeded")


def test_rows_that_are_to_be_sent_again_count_before_they_are():
    limits = KeyLimits(queued_rows=10)
    check_limits(limits, [job(total=100, done=95)], 5)
    with pytest.raises(ApiError):
        check_limits(limits, [job(total=100, done=95)], 6)


def test_a_limit_of_none_is_no_limit_and_of_zero_is_nothing():
    assert refusal(KeyLimits(), *[job(total=10**9)] * 99) is None
    assert refusal(KeyLimits(open_jobs=0)) == (429, "open_jobs_exceeded")

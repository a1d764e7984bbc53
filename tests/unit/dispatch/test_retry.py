import pytest

from dispatcher.config import DispatchSettings
from dispatcher.dispatch.retry import CHARGED_PAUSE_S, LOCAL_PAUSE_S, STALES_MAX, Again, Fail, after_fault
from dispatcher.model import ErrorCode, Job, JobId, Judgement, ServerId, Verdict

SETTINGS = DispatchSettings(free_resends_max=4)
FREE = [Verdict.SERVER_FAULT, Verdict.MISMATCH, Verdict.STALLED]


def decide(item, verdict, code=ErrorCode.SERVER_ERROR, server="s"):
    item.sends += 1
    return after_fault(item, Judgement(verdict, code, "why"), ServerId(server), SETTINGS)


def test_a_fault_of_the_request_ends_it_after_one_send(make):
    assert decide(make.item(), Verdict.REQUEST_FAULT, ErrorCode.CONTEXT_LENGTH) == Fail(
        ErrorCode.CONTEXT_LENGTH, "why"
    )


@pytest.mark.parametrize("attempts", [1, 2, 3, 7])
def test_a_doubtful_ending_is_charged_until_the_jobs_attempts_are_used_up(make, attempts):
    item = make.item(job=Job(JobId("j"), max_attempts=attempts))
    for _ in range(attempts - 1):
        assert decide(item, Verdict.DOUBTFUL, ErrorCode.TIMEOUT) == Again(CHARGED_PAUSE_S)
    assert decide(item, Verdict.DOUBTFUL, ErrorCode.TIMEOUT) == Fail(ErrorCode.TIMEOUT, "why")
    assert (item.charged, item.sends, item.resends) == (attempts, attempts, 0)


def test_a_doubtful_ending_without_a_code_is_a_server_error(make):
    item = make.item(job=Job(JobId("j"), max_attempts=1))
    assert decide(item, Verdict.DOUBTFUL, None) == Fail(ErrorCode.SERVER_ERROR, "why")


@pytest.mark.parametrize("verdict", FREE)
def test_a_servers_failure_is_resent_at_once_and_charged_to_nobody(make, verdict):
    item = make.item()
    for _ in range(SETTINGS.free_resends_max):
        assert decide(item, verdict) == Again()
    assert item.charged == 0
    failed = decide(item, verdict)
    assert failed.code is ErrorCode.RESENDS_EXHAUSTED
    assert "5 servers in a row" in failed.message


def test_free_resends_of_all_kinds_have_one_bound(make):
    item = make.item()
    decisions = [decide(item, verdict) for verdict in (*FREE, *FREE)]
    assert [isinstance(decision, Again) for decision in decisions[:5]] == [True] * 4 + [False]


def test_a_model_that_no_server_has_is_told_as_such_in_the_end(make):
    item = make.item()
    for _ in range(SETTINGS.free_resends_max):
        decide(item, Verdict.MISMATCH, ErrorCode.MODEL_NOT_FOUND)
    assert decide(item, Verdict.MISMATCH, ErrorCode.MODEL_NOT_FOUND) == Fail(ErrorCode.MODEL_NOT_FOUND, "why")


@pytest.mark.parametrize("verdict", [Verdict.DOUBTFUL, Verdict.MISMATCH])
def test_a_server_that_could_not_answer_it_is_remembered(make, verdict):
    item = make.item()
    decide(item, verdict, server="s")
    decide(item, verdict, server="t")
    assert item.tried == ("s", "t")


@pytest.mark.parametrize(
    "verdict",
    [Verdict.SERVER_FAULT, Verdict.STALLED, Verdict.OVERLOAD, Verdict.STALE_CONNECTION, Verdict.LOCAL_FAULT],
)
def test_a_server_that_only_failed_may_have_it_again(make, verdict):
    item = make.item()
    decide(item, verdict)
    assert item.tried == ()


def test_overload_is_free_without_end(make):
    item = make.item()
    assert {decide(item, Verdict.OVERLOAD) for _ in range(1000)} == {Again()}
    assert (item.charged, item.resends) == (0, 0)


def test_a_fault_of_this_machine_is_free_without_end_and_waits(make):
    item = make.item()
    assert {decide(item, Verdict.LOCAL_FAULT) for _ in range(1000)} == {Again(LOCAL_PAUSE_S)}
    assert (item.charged, item.resends) == (0, 0)


def test_a_stale_connection_is_no_send_at_all_until_there_are_too_many(make):
    item = make.item()
    for _ in range(STALES_MAX):
        assert decide(item, Verdict.STALE_CONNECTION) == Again()
    assert (item.sends, item.resends) == (0, 0)
    decisions = [decide(item, Verdict.STALE_CONNECTION) for _ in range(SETTINGS.free_resends_max + 1)]
    assert decisions[:-1] == [Again()] * SETTINGS.free_resends_max
    assert decisions[-1].code is ErrorCode.RESENDS_EXHAUSTED


def test_a_success_is_no_fault(make):
    with pytest.raises(AssertionError, match="a success needs no retry"):
        decide(make.item(), Verdict.SUCCESS)


def test_every_verdict_is_decided(make):
    for verdict in set(Verdict) - {Verdict.SUCCESS}:
        assert isinstance(decide(make.item(), verdict), Again | Fail)

from itertools import pairwise
from random import Random

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from dispatcher.config import PoolSettings
from dispatcher.model import (
    CanaryFault,
    CanaryReport,
    ErrorCode,
    Health,
    Judgement,
    ProbeReport,
    ServerId,
    ServerSpec,
    Telemetry,
    Tokens,
    Verdict,
)
from dispatcher.pool.effects import AttemptEnd, GiveUp, Look, Loss, Spared
from dispatcher.pool.moves import LAST_WORDS_S
from dispatcher.pool.pool import Pool
from dispatcher.pool.schedule import WELL_AFTER_S
from dispatcher.pool.server import DOUBTS_MAX
from dispatcher.pool.states import State
from dispatcher.telemetry.metrics import Metrics

UP = ProbeReport(Health.UP)
SLOW_CANARY = CanaryReport(CanaryFault.SLOW, "no answer in time")
FAILED_CANARY = CanaryReport(CanaryFault.FAILED, "HTTP 500")
DYING = [Health.DOWN, Health.REFUSED]


def gives_up(effects):
    return any(isinstance(effect, GiveUp) for effect in effects)


def started(at, **figures):
    return Telemetry(started_at=at, **figures)


# Membership


def test_new_members_join_and_are_returned_once(fleet):
    first = fleet.join("a", "b")
    assert [server.spec.id for server in first] == ["http://a", "http://b"]
    assert [server.state for server in first] == [State.JOINING] * 2
    assert fleet.join("a", "b", "b") == []


def test_a_missing_member_without_open_requests_is_gone_at_once_with_its_metrics(fleet):
    server = fleet.admit()
    fleet.end(server, Verdict.SUCCESS)
    fleet.metrics.attempt_ended(server.spec.id, Verdict.SUCCESS, 1.0)
    assert fleet.series_of(server)
    fleet.join()
    assert server.state is State.GONE
    assert not fleet.pool.servers
    assert not fleet.series_of(server)


def test_a_missing_member_drains_until_its_last_request_has_ended(fleet):
    server = fleet.admit()
    fleet.load(server, 2)
    fleet.join()
    assert server.state is State.DRAINING
    assert server.permits_free(fleet.time + 60) == 0
    for left in (1, 0):
        server.gave_back(float("inf"))
        fleet.end(server, Verdict.SUCCESS)
        assert server.state is (State.DRAINING if left else State.GONE)


def test_a_request_that_we_close_ourselves_ends_the_draining_too_and_is_no_evidence(fleet):
    server = fleet.admit()
    fleet.load(server)
    fleet.join()
    server.gave_back(float("inf"))
    fleet.pool.attempt_given_up(server)
    assert server.state is State.GONE
    assert server.record.failed == 0


def test_a_draining_member_that_is_listed_again_is_verified_and_keeps_its_requests(fleet):
    server = fleet.admit()
    fleet.load(server)
    fleet.join()
    assert fleet.join("s") == []
    assert server.state is State.VERIFYING
    assert not gives_up(fleet.verify(server))
    assert server.state is State.ACTIVE
    assert server.in_flight == 1


def test_a_member_that_was_forgotten_joins_anew(fleet):
    gone = fleet.admit()
    fleet.join()
    (back,) = fleet.join("s")
    assert back is not gone
    assert (gone.state, back.state) == (State.GONE, State.JOINING)


def test_a_listed_member_takes_over_a_new_key_and_a_new_limit(fleet):
    server = fleet.admit()
    fleet.time += 60
    assert server.limit.permits(fleet.time) == 256
    changed = ServerSpec(server.spec.id, server.spec.base_url, api_key="new", limit=3)
    assert fleet.pool.set_members([changed]) == []
    assert server.spec.api_key == "new"
    assert server.limit.permits(fleet.time) == 3
    assert server.state is State.ACTIVE


def test_a_servers_own_limit_wins_over_the_pools(make_fleet):
    fleet = make_fleet(limit=5)
    (common,) = fleet.join("a")
    (own,) = fleet.join("b", limit=2)
    assert common.limit.permits(1e6) == 5
    assert own.limit.permits(1e6) == 2


@pytest.mark.parametrize("health", DYING)
def test_the_requests_of_a_draining_server_do_not_wait_when_its_process_is_gone(fleet, health):
    server = fleet.admit()
    fleet.load(server, 2)
    fleet.join()
    assert gives_up(fleet.pool.probed(server, ProbeReport(health)))
    assert server.state is State.DRAINING


def test_the_requests_of_a_draining_server_do_not_wait_when_it_refuses_restarts_or_stalls(fleet):
    server = fleet.admit()
    fleet.pool.scraped(server, started(10.0))
    fleet.load(server, 2)
    fleet.join()
    assert gives_up(fleet.end(server, Verdict.SERVER_FAULT, hard=True))
    assert gives_up(fleet.pool.scraped(server, started(20.0)))
    assert not fleet.pool.look_for_stall(server)
    fleet.time += 120
    assert gives_up(fleet.pool.look_for_stall(server))


# Verification


def test_a_server_is_admitted_by_health_then_inspection_and_canary(fleet):
    (server,) = fleet.join("s")
    assert server.permits_free(fleet.time) == 0
    assert fleet.pool.probed(server, UP) == (Look(server),)
    assert server.state is State.VERIFYING
    assert server.next_check_at == fleet.time
    fleet.verify(server, models={"m": "root"}, version="0.32.0", started_at=5.0)
    assert server.state is State.ACTIVE
    assert (server.models, server.version, server.started_at) == ({"m": "root"}, "0.32.0", 5.0)
    assert server.permits_free(fleet.time) == 8


@pytest.mark.parametrize("health", [Health.DOWN, Health.REFUSED, Health.UNREACHABLE, Health.SLOW])
def test_a_server_that_does_not_answer_yet_stays_joining(fleet, health):
    (server,) = fleet.join("s")
    assert fleet.pool.probed(server, ProbeReport(health)) == ()
    assert server.state is State.JOINING
    assert server.next_check_at == fleet.time + 5


@pytest.mark.parametrize(
    ("report", "canary", "state"),
    [
        (ProbeReport(Health.DOWN, "503"), CanaryReport(), State.EVICTED),
        (ProbeReport(Health.REFUSED, "refused"), CanaryReport(), State.EVICTED),
        (UP, FAILED_CANARY, State.EVICTED),
        (UP, SLOW_CANARY, State.EVICTED),
        (UP, CanaryReport(CanaryFault.MISMATCHED, "401"), State.MISMATCHED),
        (ProbeReport(Health.UP, sleeping=True), CanaryReport(), State.PAUSED),
        (ProbeReport(Health.ABSENT), CanaryReport(), State.ACTIVE),
        (ProbeReport(Health.SLOW), CanaryReport(), State.ACTIVE),
    ],
)
def test_verification_ends_where_its_evidence_says(fleet, report, canary, state):
    (server,) = fleet.join("s")
    fleet.pool.probed(server, UP)
    fleet.pool.examined(server, report, canary)
    assert server.state is state


@pytest.mark.parametrize("health", [Health.SLOW, Health.UNREACHABLE])
def test_without_a_canary_health_must_be_good_to_admit(make_fleet, health):
    fleet = make_fleet(canary=False)
    (server,) = fleet.join("s")
    fleet.pool.probed(server, UP)
    fleet.pool.examined(server, ProbeReport(health, "bad"), CanaryReport())
    assert server.state is State.EVICTED


def test_an_inspection_that_could_not_read_the_models_leaves_them_known(fleet):
    server = fleet.admit(models={"m": "m"}, version="1", started_at=5.0)
    fleet.suspect(server)
    fleet.verify(server)
    assert (server.models, server.version, server.started_at) == ({"m": "m"}, "1", 5.0)
    fleet.pool.refreshed(server, UP)
    assert server.models == {"m": "m"}


def test_a_model_s_length_is_what_its_server_says_of_it(fleet):
    server = fleet.admit(models={"m": "m", "n": "n"}, context_tokens={"m": 1024})
    lengths = [server.context_tokens_of(model) for model in ("m", None, "n", "unknown")]
    assert lengths == [1024, 1024, None, None]
    fleet.pool.refreshed(server, UP)
    assert server.context_tokens_of("m") == 1024
    fleet.pool.refreshed(server, ProbeReport(Health.UP, context_tokens={"m": 512}))
    assert server.context_tokens_of("m") == 512
    assert fleet.admit("t").context_tokens_of(None) is None


def test_a_refresh_takes_in_new_models_and_sleep(fleet):
    server = fleet.admit(models={"m": "m"})
    fleet.pool.refreshed(server, ProbeReport(Health.UP, models={"n": "n"}))
    assert server.serves("n")
    assert not server.serves("m")
    fleet.pool.refreshed(server, ProbeReport(Health.UP, sleeping=True))
    assert server.state is State.PAUSED
    fleet.verify(server)
    assert server.state is State.ACTIVE


# Evidence from attempts


@pytest.mark.parametrize("verdict", [Verdict.SUCCESS, Verdict.REQUEST_FAULT])
def test_a_good_answer_ends_the_doubts_and_is_progress(fleet, verdict):
    server = fleet.admit()
    for _ in range(DOUBTS_MAX - 1):
        fleet.end(server, Verdict.DOUBTFUL)
    fleet.time += 7
    assert fleet.end(server, verdict, tokens=Tokens(1, 9)) == ()
    assert (server.doubts, server.progress_at) == (0, fleet.time)
    assert (server.record.succeeded, server.record.tokens) == (
        (1, 9) if verdict is Verdict.SUCCESS else (0, 0)
    )


def test_any_number_of_request_faults_evicts_nobody(fleet):
    server = fleet.admit()
    for _ in range(100):
        assert fleet.end(server, Verdict.REQUEST_FAULT) == ()
    assert server.state is State.ACTIVE


@pytest.mark.parametrize("verdict", [Verdict.STALE_CONNECTION, Verdict.LOCAL_FAULT])
def test_what_is_not_the_servers_fault_is_not_noted(fleet, verdict):
    server = fleet.admit()
    for _ in range(100):
        assert fleet.end(server, verdict, hard=True) == ()
    assert (server.state, server.record.failed) == (State.ACTIVE, 0)


def test_hard_evidence_evicts_at_once_and_gives_up_what_is_open(fleet):
    server = fleet.admit()
    fleet.load(server, 3)
    effects = fleet.end(server, Verdict.SERVER_FAULT, hard=True)
    assert effects == (GiveUp(server, "server_fault", Loss.DEAD, after_s=LAST_WORDS_S), Look(server))
    assert server.state is State.EVICTED
    assert (server.record.evictions, server.record.last_fault) == (1, "server_fault")


def test_further_hard_evidence_of_the_same_death_is_one_eviction(fleet):
    server = fleet.admit()
    for _ in range(16):
        fleet.end(server, Verdict.SERVER_FAULT, hard=True)
    assert server.record.evictions == 1


def test_soft_evidence_makes_a_suspect_that_keeps_its_requests(fleet):
    server = fleet.admit()
    fleet.load(server, 3)
    assert fleet.end(server, Verdict.SERVER_FAULT) == (Look(server),)
    assert server.state is State.SUSPECT
    assert server.permits_free(fleet.time + 60) == 0
    assert server.next_check_at == fleet.time


def test_doubts_in_a_row_make_a_suspect(fleet):
    server = fleet.admit()
    for _ in range(DOUBTS_MAX - 1):
        assert fleet.end(server, Verdict.DOUBTFUL) == ()
    assert fleet.end(server, Verdict.DOUBTFUL) == (Look(server),)
    assert server.state is State.SUSPECT


def test_doubts_with_good_answers_between_them_make_no_suspect(fleet):
    server = fleet.admit()
    for _ in range(50):
        for _ in range(DOUBTS_MAX - 1):
            fleet.end(server, Verdict.DOUBTFUL)
        fleet.end(server, Verdict.SUCCESS)
    assert server.state is State.ACTIVE


def test_a_doubt_about_a_request_that_was_doubtful_before_does_not_count(fleet):
    server = fleet.admit()
    for _ in range(100):
        assert fleet.end(server, Verdict.DOUBTFUL, repeated=True) == ()
    assert (server.state, server.doubts) == (State.ACTIVE, 0)


def test_overload_never_evicts_but_cuts_the_limit_and_pauses(fleet):
    server = fleet.admit()
    fleet.time += 60
    for _ in range(500):
        assert fleet.end(server, Verdict.OVERLOAD) == ()
    assert server.state is State.ACTIVE
    assert server.limit.permits(fleet.time + 60) == 1


@pytest.mark.parametrize(("retry_after_s", "pause_s"), [(None, 1.0), (7.5, 7.5), (0.0, 0.1)])
def test_an_overloaded_server_is_left_alone_for_as_long_as_it_asks(fleet, retry_after_s, pause_s):
    server = fleet.admit()
    fleet.end(server, Verdict.OVERLOAD, retry_after_s=retry_after_s)
    assert server.permits_free(fleet.time + pause_s - 0.01) == 0
    assert server.permits_free(fleet.time + pause_s) == 1


def test_a_shorter_pause_does_not_end_a_longer_one(fleet):
    server = fleet.admit()
    fleet.end(server, Verdict.OVERLOAD, retry_after_s=30.0)
    fleet.end(server, Verdict.OVERLOAD, retry_after_s=1.0)
    assert server.permits_free(fleet.time + 29) == 0


def test_a_mismatch_takes_the_server_out_until_it_matches(fleet):
    server = fleet.admit()
    assert not gives_up(fleet.end(server, Verdict.MISMATCH))
    assert server.state is State.MISMATCHED
    fleet.pool.examined(server, UP, CanaryReport(CanaryFault.MISMATCHED, "401"))
    assert server.state is State.MISMATCHED
    fleet.verify(server)
    assert server.state is State.ACTIVE


@pytest.mark.parametrize("models", [None, {"m": "m", "n": "n"}])
def test_a_model_that_a_server_lacks_is_not_sent_there_again(fleet, models):
    server = fleet.admit(models=models)
    fleet.end(server, Verdict.MISMATCH, model="m", code=ErrorCode.MODEL_NOT_FOUND)
    fleet.verify(server, models=models)
    assert server.state is State.ACTIVE
    assert not server.serves("m")
    assert server.serves("n")
    assert server.serves(None)


def test_a_server_whose_list_has_changed_is_believed_again(fleet):
    server = fleet.admit(models={"m": "m"})
    fleet.end(server, Verdict.MISMATCH, model="m", code=ErrorCode.MODEL_NOT_FOUND)
    fleet.verify(server, models={"m": "m", "n": "n"})
    assert server.serves("m")


def test_a_server_without_a_list_may_have_in_a_new_life_what_it_lacked(fleet):
    server = fleet.admit()
    fleet.end(server, Verdict.MISMATCH, model="m", code=ErrorCode.MODEL_NOT_FOUND)
    fleet.pool.examined(server, ProbeReport(Health.REFUSED), CanaryReport())
    fleet.pool.probed(server, UP)
    fleet.verify(server)
    assert server.serves("m")


def test_a_server_that_was_restarted_while_out_of_rotation_may_have_what_it_lacked(fleet):
    server = fleet.admit(models={"m": "m"}, started_at=1.0)
    fleet.end(server, Verdict.MISMATCH, model="m", code=ErrorCode.MODEL_NOT_FOUND)
    fleet.verify(server, models={"m": "m"}, started_at=2.0)
    assert server.state is State.ACTIVE
    assert server.serves("m")


def test_what_a_server_lacked_is_tried_again_after_a_minute(fleet):
    server = fleet.admit(models={"m": "m"})
    fleet.end(server, Verdict.MISMATCH, model="m", code=ErrorCode.MODEL_NOT_FOUND)
    fleet.verify(server, models={"m": "m"})
    fleet.time += 59
    fleet.pool.refreshed(server, ProbeReport(Health.UP, models={"m": "m"}))
    assert not server.serves("m")
    fleet.time += 1
    fleet.pool.refreshed(server, ProbeReport(Health.UP, models={"m": "m"}))
    assert server.serves("m")


def test_a_listing_server_serves_what_it_lists_and_any_unnamed_model(fleet):
    server = fleet.admit(models={"m": "m"})
    assert server.serves("m")
    assert server.serves(None)
    assert not server.serves("n")


@pytest.mark.parametrize(
    "verdict", [Verdict.DOUBTFUL, Verdict.SERVER_FAULT, Verdict.MISMATCH, Verdict.OVERLOAD]
)
def test_faults_of_an_earlier_life_are_no_evidence_against_this_one(fleet, verdict):
    server = fleet.admit()
    sent_at = fleet.time
    fleet.evict(server)
    fleet.time += 10
    fleet.pool.probed(server, UP)
    fleet.verify(server)
    failed = server.record.failed
    for _ in range(20):
        assert fleet.end(server, verdict, sent_at=sent_at, hard=True, retry_after_s=60.0) == ()
    assert (server.state, server.record.failed) == (State.ACTIVE, failed)
    assert server.permits_free(fleet.time) == 8


def test_a_good_answer_counts_however_old_its_request_is(fleet):
    server = fleet.admit()
    sent_at = fleet.time
    fleet.time += 1
    fleet.suspect(server)
    fleet.verify(server)
    fleet.time += 50
    fleet.end(server, Verdict.SUCCESS, sent_at=sent_at)
    assert (server.record.succeeded, server.progress_at) == (1, fleet.time)


# Evidence from probes


@pytest.mark.parametrize("health", DYING)
def test_a_probe_that_finds_nobody_evicts_at_once(fleet, health):
    server = fleet.admit()
    assert gives_up(fleet.pool.probed(server, ProbeReport(health, "no")))
    assert server.state is State.EVICTED


def test_any_number_of_slow_health_answers_evicts_nobody(fleet):
    server = fleet.admit()
    fleet.load(server)
    for _ in range(100):
        assert fleet.pool.probed(server, ProbeReport(Health.SLOW)) == ()
    assert server.state is State.ACTIVE


def test_an_unreachable_server_is_a_suspect(fleet):
    server = fleet.admit()
    fleet.pool.probed(server, ProbeReport(Health.UNREACHABLE, "no route"))
    assert server.state is State.SUSPECT


def test_a_suspect_is_acquitted_by_a_good_canary_and_starts_with_a_ramp(fleet):
    server = fleet.admit()
    fleet.time += 60
    fleet.suspect(server)
    fleet.verify(server)
    assert server.state is State.ACTIVE
    assert server.record.evictions == 0
    assert server.limit.permits(fleet.time) == 8


def test_a_suspect_whose_canary_fails_is_evicted(fleet):
    server = fleet.admit()
    fleet.load(server)
    fleet.suspect(server)
    assert gives_up(fleet.pool.examined(server, UP, FAILED_CANARY))
    assert server.state is State.EVICTED


def test_a_busy_suspect_that_completes_requests_is_not_evicted_for_a_slow_canary(fleet):
    server = fleet.admit()
    fleet.load(server, 2)
    fleet.suspect(server)
    fleet.time += 5
    server.gave_back(float("inf"))
    fleet.end(server, Verdict.SUCCESS)
    fleet.pool.examined(server, UP, SLOW_CANARY)
    assert server.state is State.ACTIVE


def test_a_busy_suspect_whose_tokens_move_is_not_evicted_for_a_slow_canary(fleet):
    server = fleet.admit()
    fleet.load(server, 2)
    fleet.suspect(server)
    fleet.time += 5
    fleet.pool.examined(server, UP, SLOW_CANARY, progress=True)
    assert server.state is State.ACTIVE


def test_a_suspect_with_a_slow_canary_and_no_progress_is_evicted(fleet):
    server = fleet.admit()
    fleet.load(server, 2)
    fleet.suspect(server)
    fleet.time += 5
    fleet.pool.examined(server, UP, SLOW_CANARY, progress=False)
    assert server.state is State.EVICTED


def test_a_suspect_with_a_slow_canary_whose_figures_are_unknown_has_its_time_to_stall(fleet):
    server = fleet.admit()
    fleet.load(server, 2)
    fleet.suspect(server)
    for _ in range(int(fleet.pool.settings.stall_s) // 10):
        assert fleet.pool.examined(server, UP, SLOW_CANARY) == ()
        assert server.state is State.SUSPECT
        assert server.next_check_at >= fleet.time + fleet.pool.settings.readmit_backoff_min_s
        fleet.time += 10
    fleet.pool.examined(server, UP, SLOW_CANARY)
    assert server.state is State.EVICTED


def test_an_idle_suspect_with_a_slow_canary_is_evicted(fleet):
    server = fleet.admit()
    fleet.suspect(server)
    fleet.time += 5
    fleet.pool.examined(server, UP, SLOW_CANARY)
    assert server.state is State.EVICTED


def test_without_a_canary_a_slow_suspect_is_acquitted_unless_its_requests_stall(make_fleet):
    fleet = make_fleet(canary=False)
    server = fleet.admit()
    fleet.load(server)
    fleet.suspect(server)
    fleet.pool.examined(server, ProbeReport(Health.SLOW), CanaryReport())
    assert server.state is State.ACTIVE
    fleet.time += 120
    fleet.pool.look_for_stall(server)
    fleet.pool.examined(server, UP, CanaryReport())
    assert server.state is State.EVICTED


# Stalls


def test_a_server_that_holds_requests_without_progress_is_a_suspect(fleet):
    server = fleet.admit()
    fleet.load(server, 3)
    fleet.time += 119.9
    assert fleet.pool.look_for_stall(server) == ()
    fleet.time += 0.1
    assert fleet.pool.look_for_stall(server) == (Look(server),)
    assert server.state is State.SUSPECT
    assert server.machine.reason == "no progress for 120 s with 3 requests open"


def test_an_idle_server_never_stalls_and_its_first_request_starts_the_clock(fleet):
    server = fleet.admit()
    fleet.time += 10_000
    assert fleet.pool.look_for_stall(server) == ()
    fleet.load(server)
    assert fleet.pool.look_for_stall(server) == ()


@pytest.mark.parametrize(
    "figures", [{"generation_tokens_total": 5.0}, {"prompt_tokens_total": 5.0}], ids=["written", "read"]
)
def test_tokens_that_the_server_counts_are_progress(fleet, figures):
    server = fleet.admit()
    fleet.load(server)
    fleet.pool.scraped(server, Telemetry(generation_tokens_total=1.0))
    fleet.time += 100
    fleet.pool.scraped(server, Telemetry(**figures))
    assert server.progress_at == fleet.time
    fleet.time += 100
    fleet.pool.scraped(server, Telemetry(**figures))
    assert server.progress_at == fleet.time - 100


def test_the_first_figures_and_absent_ones_are_no_progress(fleet):
    server = fleet.admit()
    fleet.load(server)
    at = fleet.time
    for telemetry in (None, Telemetry(), Telemetry(generation_tokens_total=9.0), Telemetry()):
        fleet.time += 10
        fleet.pool.scraped(server, telemetry)
    assert server.progress_at == at


@pytest.mark.parametrize(("lost", "silent"), [(1, True), (2, False)])
def test_requests_that_a_working_server_has_lost_are_given_up(fleet, lost, silent):
    server = fleet.admit()
    fleet.pool.scraped(server, Telemetry(generation_tokens_total=9.0))
    fleet.load(server, lost)
    fleet.time += 120
    fleet.pool.look_for_stall(server)
    effects = fleet.verify(server)
    assert gives_up(effects)
    assert [effect.silent for effect in effects if isinstance(effect, GiveUp)] == [silent]
    assert server.state is State.ACTIVE


def test_long_requests_of_a_server_that_counts_no_tokens_are_left_alone_after_a_good_canary(fleet):
    server = fleet.admit()
    fleet.load(server, 2)
    fleet.time += 120
    fleet.pool.look_for_stall(server)
    assert not gives_up(fleet.verify(server))
    assert server.state is State.ACTIVE


def spare(fleet, server):
    """It stalls, becomes a suspect, and passes its canary."""
    fleet.time += 120 * server.patience
    fleet.pool.look_for_stall(server)
    assert server.state is State.SUSPECT
    fleet.verify(server)
    assert server.state is State.ACTIVE


def test_a_server_that_is_silent_to_requests_and_good_to_its_canary_gets_one_more_until_it_answers(fleet):
    server = fleet.admit()
    fleet.load(server, 3)
    spare(fleet, server)
    fleet.time += 60
    assert server.permits_free(fleet.time) == 1
    fleet.load(server)
    assert server.permits_free(fleet.time) == 0
    fleet.end(server, Verdict.SUCCESS)
    assert server.permits_free(fleet.time) > 100


def test_it_gets_another_once_a_silent_request_has_ended(fleet):
    server = fleet.admit()
    fleet.load(server, 2)
    sent_at = fleet.time
    spare(fleet, server)
    fleet.time += 60
    server.gave_back(sent_at)
    assert (server.silent, server.permits_free(fleet.time)) == (1, 1)
    server.gave_back(sent_at)
    assert server.silent == 0
    assert server.permits_free(fleet.time) > 100


def test_each_canary_that_is_passed_in_spite_of_a_stall_doubles_the_patience(fleet):
    server = fleet.admit()
    fleet.load(server)
    for patience in (1, 2, 4):
        assert server.patience == patience
        fleet.time += 120 * patience - 1
        assert fleet.pool.look_for_stall(server) == ()
        fleet.time -= 120 * patience - 1
        spare(fleet, server)
        assert server.setbacks == 0
    fleet.end(server, Verdict.SUCCESS)
    assert server.patience == 1


def test_an_eviction_ends_the_patience(fleet):
    server = fleet.admit()
    fleet.load(server)
    spare(fleet, server)
    fleet.evict(server)
    server.gave_back(0.0)
    fleet.pool.probed(server, UP)
    fleet.verify(server)
    assert server.state is State.ACTIVE
    assert (server.patience, server.silent) == (1, 0)


@pytest.mark.parametrize("verdict", [Verdict.MISMATCH, None])
def test_requests_at_a_server_out_of_rotation_do_not_wait_for_ever(fleet, verdict):
    server = fleet.admit()
    fleet.load(server)
    if verdict is None:
        fleet.pool.refreshed(server, ProbeReport(Health.UP, sleeping=True))
    else:
        fleet.end(server, verdict)
    report, canary = ProbeReport(Health.UP, sleeping=True), CanaryReport()
    assert not gives_up(fleet.pool.examined(server, report, canary))
    fleet.time += 120
    assert gives_up(fleet.pool.examined(server, report, canary))
    assert server.state is State.PAUSED


# Restarts


def test_a_later_start_of_the_process_is_a_restart(fleet):
    server = fleet.admit(started_at=10.0)
    fleet.load(server)
    assert fleet.pool.scraped(server, started(10.0)) == ()
    effects = fleet.pool.scraped(server, started(20.0))
    assert gives_up(effects)
    assert server.state is State.VERIFYING


def test_a_start_that_was_not_told_for_a_while_is_not_forgotten(fleet):
    server = fleet.admit(started_at=10.0)
    fleet.pool.scraped(server, Telemetry())
    fleet.pool.scraped(server, started(20.0))
    assert server.state is State.VERIFYING


def test_replicas_behind_one_address_are_no_endless_restarts(fleet):
    server, restarts = fleet.admit(started_at=10.0), 0
    for _ in range(50):
        for at in (30.0, 10.0, 20.0):
            restarts += gives_up(fleet.pool.scraped(server, started(at)))
            if server.state is State.VERIFYING:
                fleet.verify(server, started_at=at)
    assert restarts == 1


@pytest.mark.parametrize("by", ["scrape", "inspection"])
def test_a_suspect_that_was_restarted_is_verified_anew(fleet, by):
    server = fleet.admit(started_at=10.0)
    fleet.load(server)
    fleet.suspect(server)
    if by == "scrape":
        effects = fleet.pool.scraped(server, started(20.0))
    else:
        effects = fleet.verify(server, started_at=20.0)
    assert gives_up(effects)
    assert server.state is State.VERIFYING
    fleet.verify(server, started_at=20.0)
    assert server.state is State.ACTIVE


# Readmission


def test_health_alone_does_not_readmit(fleet):
    server = fleet.admit()
    fleet.evict(server)
    fleet.pool.probed(server, UP)
    assert server.state is State.VERIFYING
    assert server.permits_free(fleet.time + 100) == 0
    fleet.pool.examined(server, UP, SLOW_CANARY)
    assert server.state is State.EVICTED


def test_each_failed_look_at_an_evicted_server_lengthens_the_wait(fleet):
    server = fleet.admit()
    fleet.evict(server)
    assert server.next_check_at == fleet.time + 2
    waits = []
    for _ in range(200):
        fleet.pool.probed(server, ProbeReport(Health.REFUSED))
        waits.append(server.next_check_at - fleet.time)
    assert waits[0] <= 4
    assert waits[1] <= 8
    assert 50 < max(waits) <= 60


def test_setbacks_are_forgotten_after_five_good_minutes(fleet):
    server = fleet.admit()
    fleet.evict(server)
    fleet.pool.probed(server, UP)
    fleet.verify(server)
    fleet.time += WELL_AFTER_S - 1
    fleet.pool.probed(server, UP)
    assert server.setbacks == 2
    fleet.time += 1
    fleet.pool.probed(server, UP)
    assert server.setbacks == 0


def test_a_server_that_works_for_its_canary_only_is_tried_less_and_less(fleet):
    server, waits = fleet.admit(), []
    for _ in range(12):
        for _ in range(DOUBTS_MAX):
            fleet.end(server, Verdict.DOUBTFUL)
        assert server.next_check_at == fleet.time, "whether it lives is asked at once"
        fleet.pool.probed(server, UP)
        waits.append(server.next_check_at - fleet.time)
        fleet.time = server.next_check_at
        fleet.verify(server)
    assert waits[:2] == [0, 2]
    assert sum(waits) > 60


def test_a_server_that_works_is_cleared_at_once_however_often_it_is_suspected(fleet):
    server = fleet.admit()
    for _ in range(20):
        fleet.end(server, Verdict.SUCCESS)
        fleet.suspect(server)
        assert server.next_check_at == fleet.time
        fleet.verify(server)


# Capacity


def test_capacity_is_that_of_the_servers_in_rotation(fleet):
    a, b = fleet.admit("a", models={"m": "m"}), fleet.admit("b", models={"n": "n"})
    fleet.time += 60
    assert fleet.pool.permits_total(fleet.time) == 512
    assert fleet.pool.can_serve("n")
    fleet.evict(b)
    assert fleet.pool.permits_total(fleet.time) == 256
    assert list(fleet.pool.active()) == [a]
    assert not fleet.pool.can_serve("n")
    assert fleet.pool.can_serve(None)


def test_the_free_share_is_of_what_the_server_may_hold_now(fleet):
    server = fleet.admit()
    fleet.load(server, 2)
    assert server.free_share(fleet.time) == 6 / 8
    assert server.free_share(fleet.time + 1) == 14 / 16


def test_a_permit_cannot_come_back_twice(fleet):
    server = fleet.admit()
    fleet.load(server)
    server.gave_back(float("inf"))
    with pytest.raises(AssertionError, match="gave back a permit"):
        server.gave_back(float("inf"))


def test_metrics_show_state_permits_evictions_and_readmissions(fleet):
    server = fleet.admit()
    fleet.load(server, 2)
    name = {"server": server.spec.id}
    value = fleet.registry.get_sample_value
    assert value("dispatcher_server_in_flight", name) == 2
    assert value("dispatcher_server_limit", name) == 8
    assert value("dispatcher_server_state", {**name, "state": "active"}) == 1
    fleet.evict(server)
    assert value("dispatcher_server_limit", name) == 0
    assert value("dispatcher_server_state", {**name, "state": "active"}) == 0
    assert value("dispatcher_evictions_total", {**name, "reason": "died"}) == 1
    fleet.pool.probed(server, UP)
    fleet.verify(server)
    assert value("dispatcher_readmissions_total", name) == 1


def test_server_ids_are_what_the_pool_is_keyed_by(fleet):
    server = fleet.admit("x")
    assert fleet.pool.servers == {ServerId("http://x"): server}


def test_soft_evidence_against_more_than_half_of_the_pool_is_held_back_for_a_minute(fleet):
    servers = [fleet.admit(name) for name in "abcd"]
    for server in servers:
        fleet.load(server)
        fleet.suspect(server)
    effects = [fleet.pool.examined(server, UP, FAILED_CANARY) for server in servers]
    assert [server.state for server in servers] == [State.EVICTED] * 2 + [State.SUSPECT] * 2
    assert not any(gives_up(each) for each in effects[2:])
    assert all(server.next_check_at > fleet.time for server in servers[2:])
    fleet.time += 60
    fleet.pool.examined(servers[2], UP, FAILED_CANARY)
    assert servers[2].state is State.EVICTED


def test_hard_evidence_is_never_held_back(fleet):
    servers = [fleet.admit(name) for name in "abcd"]
    for server in servers:
        fleet.evict(server)
    assert {server.state for server in servers} == {State.EVICTED}


def test_an_unproven_server_with_doubts_is_given_no_more_than_would_convict_it(fleet):
    server = fleet.admit()
    fleet.time += 10
    assert server.permits_free(fleet.time) == 256
    fleet.end(server, Verdict.DOUBTFUL)
    assert server.permits_free(fleet.time) == DOUBTS_MAX - 1
    fleet.end(server, Verdict.SUCCESS)
    assert server.permits_free(fleet.time) == 256


def test_a_server_spared_by_its_canary_gets_one_request_at_a_time_until_one_is_answered_well(fleet):
    server = fleet.admit()
    for _ in range(DOUBTS_MAX):
        fleet.end(server, Verdict.DOUBTFUL)
    fleet.verify(server)
    fleet.time += 10
    assert (server.state, server.permits_free(fleet.time)) == (State.ACTIVE, 1)
    fleet.end(server, Verdict.DOUBTFUL)
    assert server.state is State.SUSPECT
    fleet.verify(server)
    fleet.time += 10
    fleet.end(server, Verdict.SUCCESS)
    assert server.permits_free(fleet.time) == 256


# What a loss tells of the requests that were there


def losses(effects):
    return [effect.loss for effect in effects if isinstance(effect, GiveUp)]


def test_a_server_that_is_found_dead_is_a_death(fleet):
    server = fleet.admit()
    assert losses(fleet.pool.probed(server, ProbeReport(Health.REFUSED))) == [Loss.DEAD]


def test_a_restart_is_a_death(fleet):
    server = fleet.admit(started_at=1.0)
    assert losses(fleet.pool.scraped(server, Telemetry(started_at=2.0))) == [Loss.DEAD]


def test_a_server_that_hangs_is_lost_as_that_and_one_that_fails_its_canary_as_another(fleet):
    hung, failing, *_ = [fleet.admit(name) for name in ("hung", "failing", "c", "d")]
    fleet.load(hung)
    fleet.time += 120
    fleet.pool.look_for_stall(hung)
    fleet.suspect(failing)
    canary = CanaryReport(CanaryFault.SLOW, "no answer")
    assert losses(fleet.pool.examined(hung, ProbeReport(Health.UP), canary)) == [Loss.HUNG]
    canary = CanaryReport(CanaryFault.FAILED, "500")
    assert losses(fleet.pool.examined(failing, ProbeReport(Health.UP), canary)) == [Loss.OTHER]


def test_a_server_that_has_hung_once_is_not_taken_to_hang_after_its_acquittal(fleet):
    server = fleet.admit()
    fleet.load(server)
    fleet.time += 120
    fleet.pool.look_for_stall(server)
    fleet.verify(server)
    assert server.state is State.ACTIVE
    fleet.suspect(server)
    canary = CanaryReport(CanaryFault.FAILED, "500")
    assert losses(fleet.pool.examined(server, ProbeReport(Health.UP), canary)) == [Loss.OTHER]


@pytest.mark.parametrize(
    ("report", "canary"),
    [
        (ProbeReport(Health.UP), CanaryReport()),
        (ProbeReport(Health.UP, sleeping=True), CanaryReport()),
        (ProbeReport(Health.UP), CanaryReport(CanaryFault.MISMATCHED, "401")),
    ],
    ids=["verified", "asleep", "mismatched"],
)
def test_a_suspect_that_lives_in_whatever_state_is_told_to_live(fleet, report, canary):
    server = fleet.admit()
    fleet.suspect(server)
    assert Spared(server) in fleet.pool.examined(server, report, canary)


def test_a_break_of_a_request_from_before_an_acquittal_is_evidence_and_a_doubt_is_not(fleet):
    server = fleet.admit()
    sent_at = fleet.time
    fleet.time += 1
    fleet.suspect(server)
    fleet.verify(server)
    for _ in range(2 * DOUBTS_MAX):
        fleet.end(server, Verdict.DOUBTFUL, sent_at=sent_at)
    assert server.state is State.ACTIVE
    fleet.end(server, Verdict.SERVER_FAULT, sent_at=sent_at)
    assert server.state is State.SUSPECT


def test_what_a_server_can_hold_is_known_before_its_first_request(fleet):
    server = fleet.admit(telemetry=Telemetry(waiting=0.0, kv_max_concurrency=12.0))
    fleet.time += 60
    assert server.limit.permits(fleet.time) == 12


# What the operator is told


@pytest.mark.parametrize(
    ("models", "lacking", "told"),
    [
        (None, (), "serves any model"),
        (None, ("m",), "serves any model, but answered that it has no m"),
        ({"b": "b", "a": "b"}, (), "serves a, b"),
        ({"b": "b", "a": "b"}, ("a",), "serves b, but answered that it has no a"),
        ({"a": "a"}, ("a",), "serves no model, but answered that it has no a"),
        ({"a": "a"}, ("other",), "serves a"),
        ({f"m{number}": "m" for number in range(9)}, (), "serves m0, m1, m2, m3, m4, 4 more"),
    ],
)
def test_the_models_that_a_server_serves_are_told_and_those_it_refused(fleet, models, lacking, told):
    server = fleet.admit(models=models)
    server.lacking = dict.fromkeys(lacking, fleet.time)
    assert server.serving == told


def test_servers_that_are_admitted_together_are_not_asked_for_their_figures_together():
    random = Random(1)
    pool = Pool(PoolSettings(scrape_interval_s=5), Metrics(CollectorRegistry()), lambda: 100.0, random)
    servers = pool.set_members([ServerSpec(ServerId(str(number)), str(number)) for number in range(100)])
    for server in servers:
        pool.probed(server, UP)
        pool.examined(server, UP, CanaryReport())
    times = sorted(server.next_scrape_at for server in servers)
    assert all(100 <= at <= 105 for at in times)
    assert max(later - earlier for earlier, later in pairwise(times)) < 0.5


def servers_shown(fleet):
    """The servers that have series."""
    samples = [sample for family in fleet.registry.collect() for sample in family.samples]
    return {sample.labels["server"] for sample in samples if "server" in sample.labels}


def test_servers_that_come_and_go_with_requests_open_leave_no_series(fleet):
    for wave in range(4):
        servers = fleet.join(*(f"s{wave}-{number}" for number in range(25)))
        for server in servers:
            fleet.pool.probed(server, UP)
            fleet.verify(server)
            fleet.load(server)
        for server in servers[::2]:
            fleet.end(server, Verdict.SERVER_FAULT, hard=True)
        assert len(servers_shown(fleet)) == 25
        fleet.join()
        for server in servers:
            server.gave_back(fleet.time)
            fleet.end(server, Verdict.SUCCESS)
    assert fleet.pool.servers == {}
    assert servers_shown(fleet) == set()


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize(
    ("verdict", "state"),
    [(Verdict.SERVER_FAULT, State.SUSPECT), (Verdict.MISMATCH, State.MISMATCHED)],
)
def test_what_a_server_says_is_for_the_operator_and_in_the_log_only_where_it_is_asked_for(
    make_fleet, verdict, state, asked
):
    fleet = make_fleet(log_prompts=asked)
    server = fleet.admit()
    said = Judgement(verdict, message="bad row: my secret", status=502)
    with capture_logs() as logs:
        fleet.pool.attempt_ended(server, AttemptEnd(said, fleet.time, "m", repeated=False))
    (entry,) = logs
    assert (entry["event"], server.state) == (f"server_{state}", state)
    assert entry["reason"] == ("bad row: my secret" if asked else f"HTTP 502: {verdict}")
    assert server.reason == server.record.last_fault == "bad row: my secret"
    assert server.plain_reason == server.record.last_fault_plain == f"HTTP 502: {verdict}"

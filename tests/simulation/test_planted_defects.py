"""The simulator can fail: each defect planted in the dispatcher here is found as the breach it is."""

from dataclasses import replace

import pytest

from dispatcher.config import Config
from dispatcher.dispatch.desk import Desk
from dispatcher.dispatch.retry import Fail
from dispatcher.model import ErrorCode, Verdict
from dispatcher.pool.server import Server
from dispatcher.ports import Replay
from dispatcher.results.journal_file import JournalFile
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.simulation import run
from dispatcher.testing.simulation.rows import JobPlan, Lengths
from dispatcher.testing.simulation.run import run_scenario
from dispatcher.testing.simulation.scenario import (
    Death,
    DeathKind,
    Fault,
    FaultKind,
    Scenario,
    ServerPlan,
)

ENGINE = EngineSettings(max_sequences=8)
PLAIN = Scenario(
    seed=1,
    servers=(ServerPlan(ENGINE, limit=8), ServerPlan(ENGINE)),
    job=JobPlan(200, Lengths(20.0, 0.5, 100), Lengths(50.0, 0.5, 200)),
    sync_s=0.2,
)
WITH_DEATH = replace(PLAIN, deaths=(Death(DeathKind.KILLED, 500, 1.0),))
WITH_POWER_CUT = replace(PLAIN, deaths=(Death(DeathKind.POWER_CUT, 500, 1.0),))
WITH_FAULTS = replace(PLAIN, faults=(Fault(FaultKind.KILLED, 0, 3.0, 5.0),))


@pytest.mark.parametrize("scenario", [PLAIN, WITH_DEATH, WITH_POWER_CUT, WITH_FAULTS])
def test_without_a_defect_nothing_is_found(scenario):
    assert run_scenario(scenario).breaches == ()


def breaches(scenario):
    return " | ".join(run_scenario(scenario).breaches)


def test_a_row_that_is_dropped_is_missed(monkeypatch):
    genuine = Desk.attempt_ended

    def losing_row_7(self, attempt, ending, **said):
        ended = genuine(self, attempt, ending, **said)
        return replace(ended, outcome=None) if attempt.item.request.index == 7 else ended

    monkeypatch.setattr(Desk, "attempt_ended", losing_row_7)
    assert "not finished within" in breaches(PLAIN)


def test_a_row_that_is_sent_again_although_finished_is_noticed(monkeypatch):
    genuine = Desk.admit

    def forgetting(self, lease, requests, replay):
        return genuine(self, lease, requests, Replay(tally=replay.tally))

    monkeypatch.setattr(Desk, "admit", forgetting)
    assert "was sent although durable" in breaches(WITH_DEATH)


def test_a_limit_that_is_exceeded_is_noticed(monkeypatch):
    genuine = Server.permits_for_jobs
    monkeypatch.setattr(Server, "permits_for_jobs", lambda self, now: genuine(self, now) + 1)
    found = breaches(PLAIN)
    assert "holds 9 of 8" in found
    assert "over its fixed limit" in found


def test_a_row_for_a_server_that_is_not_active_is_noticed(monkeypatch):
    def whatever_its_state(self, now):
        return self.limit.permits(now) - self.in_flight

    monkeypatch.setattr(Server, "permits_for_jobs", whatever_its_state)
    assert "was given a row while evicted" in breaches(WITH_FAULTS)


def test_a_permit_that_never_comes_back_is_noticed(monkeypatch):
    genuine, given = Server.gave_back, []

    def all_but_one(self, sent_at):
        given.append(self)
        if len(given) != 50:
            genuine(self, sent_at)

    monkeypatch.setattr(Server, "gave_back", all_but_one)
    assert "1 permits never came back" in breaches(PLAIN)


def test_a_good_row_that_fails_for_its_servers_death_is_noticed(monkeypatch):
    from dispatcher.dispatch import fates

    genuine = fates.after_fault

    def charging(item, judgement, *others):
        if judgement.verdict is Verdict.SERVER_FAULT:
            return Fail(ErrorCode.SERVER_ERROR, judgement.message)
        return genuine(item, judgement, *others)

    monkeypatch.setattr(fates, "after_fault", charging)
    assert "is good and ended as server_error" in breaches(WITH_FAULTS)


def test_outcomes_that_are_announced_before_they_are_synced_are_missed_after_a_power_cut(monkeypatch):
    genuine = JournalFile.sync

    def pretending(self):
        disk, self._disk = self._disk, Unsynced()
        try:
            return genuine(self)
        finally:
            self._disk = disk

    monkeypatch.setattr(JournalFile, "sync", pretending)
    assert "no output can be made" in breaches(WITH_POWER_CUT)


class Unsynced:
    def sync(self, descriptor):
        """Do nothing."""

    def sync_folder(self, folder):
        """Do nothing."""


def test_a_server_that_is_admitted_without_a_canary_is_noticed(monkeypatch):
    genuine = run.config_of

    def trusting(scenario):
        settings = genuine(scenario).model_dump(mode="python")
        settings["pool"]["canary"] = False
        return Config.model_validate(settings)

    monkeypatch.setattr(run, "config_of", trusting)
    assert "was admitted without a canary" in breaches(PLAIN)


def test_an_output_out_of_order_is_noticed(monkeypatch):
    from dispatcher.results import finalise

    genuine = finalise._lines
    monkeypatch.setattr(finalise, "_lines", lambda records: genuine(reversed(list(records))))
    assert "the output file is out of order" in breaches(PLAIN)


def test_a_dispatcher_that_waits_for_ever_is_a_deadlock_or_late(monkeypatch):
    monkeypatch.setattr(Server, "permits_for_jobs", lambda *_: 0)
    assert "not finished within" in breaches(PLAIN)


def test_an_error_of_the_dispatcher_is_a_breach_with_its_words(monkeypatch):
    def failing(self, attempt, ending, **said):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(Desk, "attempt_ended", failing)
    assert "it raised ZeroDivisionError: planted" in breaches(PLAIN)


def test_a_breach_comes_with_the_latest_events(monkeypatch):
    monkeypatch.setattr(Server, "permits_for_jobs", lambda *_: 0)
    report = run_scenario(PLAIN)
    assert not report.passed
    assert any("server_active" in line for line in report.latest)

"""The simulator of several nodes can fail: each defect planted here is found as the breach it is."""

import contextlib
from dataclasses import replace

import pytest

from dispatcher.dispatch.desk import Desk
from dispatcher.dispatch.node import Node
from dispatcher.errors import LeaseLostError
from dispatcher.ports import Replay
from dispatcher.queue.memory import MemoryQueue, _JobShards
from dispatcher.results.checkpointed import CheckpointedRecorder
from dispatcher.results.journal_file import JournalFile
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.simulation.nodes.outcomes import Outcomes
from dispatcher.testing.simulation.nodes.run import run_nodes
from dispatcher.testing.simulation.nodes.scenario import Moment, NodesScenario, NodeTrouble, Trouble
from dispatcher.testing.simulation.rows import JobPlan, Lengths
from dispatcher.testing.simulation.scenario import Scenario, ServerPlan

ENGINE = EngineSettings(max_sequences=8)
PLAIN = NodesScenario(
    Scenario(
        seed=1,
        servers=(ServerPlan(ENGINE, limit=8), ServerPlan(ENGINE)),
        job=JobPlan(400, Lengths(20.0, 0.5, 100), Lengths(100.0, 0.5, 400)),
        lease_s=15.0,
        sync_s=0.2,
    ),
    starts=(0.0, 0.0),
    clocks_ahead=(0.0, 120.0),
    checkpoint_s=5.0,
    rows_at_once=32,
)


def struck(kind, at=12.0, seconds=5.0, moment=Moment.ANY, scenario=PLAIN):
    return replace(scenario, troubles=(NodeTrouble(kind, 0, at, seconds, moment),))


LONG = replace(PLAIN, base=replace(PLAIN.base, job=JobPlan(200, Lengths(20.0), Lengths(1000.0, 0.5, 4000))))
KILLED = struck(Trouble.KILLED)
LOST = struck(Trouble.LOST)
DRAINED = struck(Trouble.DRAINED, at=6.0)
FROZEN = struck(Trouble.FROZEN, seconds=30.0)
FROZEN_WHILE_SETTLING = struck(Trouble.FROZEN, seconds=40.0, moment=Moment.SETTLING)
CUT_OFF = struck(Trouble.NO_QUEUE, seconds=40.0)
SHARED_DISK = struck(Trouble.KILLED, scenario=replace(PLAIN, shared_disk=True))
ALL = {
    "no trouble": PLAIN,
    "killed": KILLED,
    "lost with its disk": LOST,
    "drained": DRAINED,
    "frozen": FROZEN,
    "frozen while it settles": FROZEN_WHILE_SETTLING,
    "cut off from the queue": CUT_OFF,
    "killed on a shared disk": SHARED_DISK,
}


@pytest.mark.parametrize("scenario", ALL.values(), ids=ALL)
def test_without_a_defect_nothing_is_found(scenario):
    assert run_nodes(scenario).breaches == ()


def breaches(scenario):
    return " | ".join(run_nodes(scenario).breaches)


def test_a_row_that_is_dropped_is_missed(monkeypatch):
    genuine = Desk.attempt_ended

    def losing_row_7(self, attempt, ending, **said):
        ended = genuine(self, attempt, ending, **said)
        return replace(ended, outcome=None) if attempt.item.request.index == 7 else ended

    monkeypatch.setattr(Desk, "attempt_ended", losing_row_7)
    assert "not finished within" in breaches(PLAIN)


def test_a_row_that_is_sent_again_although_the_node_read_that_it_is_finished_is_noticed(monkeypatch):
    genuine = Desk.admit

    def forgetting(self, lease, requests, replay):
        return genuine(self, lease, requests, Replay(tally=replay.tally))

    monkeypatch.setattr(Desk, "admit", forgetting)
    assert "was sent although durable" in breaches(KILLED)


def test_a_shard_that_is_leased_to_two_nodes_is_noticed(monkeypatch):
    genuine, looks = _JobShards.free_expired, []

    def too_early_once(self, now):
        looks.append(now)
        if len(looks) == 6:
            self.free(min(self.leased))
        genuine(self, now)

    monkeypatch.setattr(_JobShards, "free_expired", too_early_once)
    assert "is leased to two nodes" in breaches(PLAIN)


def test_a_shard_that_is_settled_by_a_lease_that_is_over_is_noticed(monkeypatch):
    genuine = MemoryQueue.settle

    async def never_refused(self, node, lease, tally):
        with contextlib.suppress(LeaseLostError):
            await genuine(self, node, lease, tally)

    monkeypatch.setattr(MemoryQueue, "settle", never_refused)
    assert "by epoch 1, not 2" in breaches(FROZEN_WHILE_SETTLING)


def test_a_settled_shard_that_comes_again_is_noticed(monkeypatch):
    genuine, settled = MemoryQueue._forget, []

    def but_for_the_first(self, lease):
        settled.append(lease)
        if len(settled) == 1:
            self._jobs[lease.job.id].give_back(lease.shard.number)
        else:
            genuine(self, lease)

    monkeypatch.setattr(MemoryQueue, "_forget", but_for_the_first)
    assert "is settled, and leased again" in breaches(PLAIN)


def test_a_shard_that_is_settled_before_its_journal_is_in_the_store_is_noticed(monkeypatch):
    async def closing_here_only(self, lease):
        await self._inner.close(lease)
        self._open.pop((lease.job.id, lease.shard.number), None)

    monkeypatch.setattr(CheckpointedRecorder, "close", closing_here_only)
    assert "was settled by epoch 1 without rows" in breaches(PLAIN)


def test_a_journal_that_is_written_after_its_shard_was_settled_is_noticed(monkeypatch):
    genuine = Outcomes.settled

    def and_then_one_more(self, lease):
        genuine(self, lease)
        key = f"journals/{lease.job.id}/000/{lease.shard.number:06}/{lease.epoch:06}"
        late = self._objects.read(key).split(b"\n")[:-2]
        self._objects.put(key, b"\n".join([*late, b""]), self._objects.find(key).version)

    monkeypatch.setattr(Outcomes, "settled", and_then_one_more)
    assert "is not finished" in breaches(PLAIN)


def test_journals_that_are_never_checkpointed_are_noticed_by_whoever_takes_them_over(monkeypatch):
    async def not_now(self):
        """Put nothing."""

    monkeypatch.setattr(CheckpointedRecorder, "_look", not_now)
    assert "is redone: durable for" in breaches(struck(Trouble.LOST, 30.0, scenario=LONG))


def test_on_a_shared_disk_no_row_is_redone(monkeypatch):
    genuine = JournalFile.sync

    def and_losing_it(self):
        genuine(self)
        self._disk.truncate(self._descriptor, 0)

    monkeypatch.setattr(JournalFile, "sync", and_losing_it)
    assert "is redone" in breaches(SHARED_DISK)


def test_shards_of_a_dead_node_that_nobody_takes_over_are_missed(monkeypatch):
    monkeypatch.setattr(_JobShards, "free_expired", lambda _self, _now: None)
    assert "killed at 12.000, is not taken over" in breaches(KILLED)


def test_shards_that_a_stopped_node_does_not_give_back_are_missed(monkeypatch):
    genuine = _JobShards.give_back
    given = []

    def not_at_once(self, number):
        given.append((self, number))
        if len(given) > 100:
            genuine(self, number)

    monkeypatch.setattr(_JobShards, "give_back", not_at_once)
    assert "given back by a0" in breaches(DRAINED)


def test_what_was_durable_when_a_shard_was_given_back_must_be_there_for_the_next(monkeypatch):
    genuine = Node._close_shards

    async def not_closing(self):
        if self.name != "a0":
            await genuine(self)

    monkeypatch.setattr(Node, "_close_shards", not_closing)
    assert "was given back" in breaches(DRAINED)


def test_a_node_that_goes_on_with_a_settled_shard_without_an_excuse_is_noticed(monkeypatch):
    monkeypatch.setattr(Node, "_lose", lambda _self, _leases: None)
    assert "which is settled" in breaches(struck(Trouble.FROZEN, 15.0, 150.0, scenario=LONG))

"""How soon another node goes on with what one had, and what is done twice."""

from dataclasses import replace

import pytest

from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.simulation.ledger import Ledger
from dispatcher.testing.simulation.nodes.run import run_nodes
from dispatcher.testing.simulation.nodes.scenario import NodesScenario, NodeTrouble, Trouble
from dispatcher.testing.simulation.rows import JobPlan, Lengths
from dispatcher.testing.simulation.scenario import Scenario, ServerPlan

SERVER = ServerPlan(EngineSettings(max_sequences=16))
LEASE_S = 20.0


def scenario(kind, seed, at=15.0, **settings):
    """The second node has room for all that the first one has."""
    base = Scenario(
        seed,
        servers=(SERVER,) * 2,
        job=JobPlan(480, Lengths(20.0, 0.5, 100), Lengths(300.0, 0.5, 1000)),
        lease_s=LEASE_S,
        sync_s=0.2,
    )
    several = NodesScenario(base, (0.0, 0.0), (0.0, -30.0), checkpoint_s=5.0, rows_at_once=32)
    return replace(several, troubles=(NodeTrouble(kind, 0, at, 500.0),), **settings)


@pytest.fixture
def told(monkeypatch):
    """What happened: a time, what, and whom it was about."""
    lines, genuine = [], Ledger.note

    def note(self, kind, *details):
        lines.append((self.now(), kind, *map(str, details)))
        genuine(self, kind, *details)

    monkeypatch.setattr(Ledger, "note", note)
    return lines


def taken_after_s(told, since, node="a0"):
    """Seconds from then until each shard that the node had is another's."""
    had = {shard for _, kind, *whom in told if kind == "leased" and whom[0] == node for shard in [whom[1]]}
    done = {whom[1] for at, kind, *whom in told if kind == "settled" and at < since}
    took = {
        whom[1]: at - since
        for at, kind, *whom in told
        if kind == "leased" and whom[0] != node and whom[1] in had - done
    }
    assert took.keys() == had - done
    return sorted(took.values())


@pytest.mark.parametrize("kind", [Trouble.KILLED, Trouble.LOST])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_killed_node_had_runs_elsewhere_within_the_lease_time_and_five_seconds(told, kind, seed):
    report = run_nodes(scenario(kind, seed))
    assert report.breaches == ()
    (struck_at,) = [at for at, kind, *_ in told if kind == "strike"]
    took = taken_after_s(told, struck_at)
    assert len(took) > 1
    assert took[-1] <= LEASE_S + 5.0, f"{took[0]:.2f} to {took[-1]:.2f} s"


@pytest.mark.parametrize("seed", range(4))
def test_what_a_drained_node_had_runs_elsewhere_within_a_second_and_nothing_is_redone(told, seed):
    """Its own requests end first; what it hands over, it hands over whole."""
    long = scenario(Trouble.DRAINED, seed, at=8.0)
    report = run_nodes(long)
    assert report.breaches == ()
    assert report.counts["redone"] == 0
    released = [(at, whom[1]) for at, kind, *whom in told if kind == "released" and whom[0] == "a0"]
    assert released
    leased = {whom[1]: at for at, kind, *whom in told if kind == "leased" and whom[0] == "b0"}
    assert max(leased[shard] - at for at, shard in released) <= 1.0
    answered = [whom[2] for _, kind, *whom in told if kind == "ended" and whom[-1] == "200"]
    assert len(answered) == len(set(answered)) == 480


@pytest.mark.parametrize("checkpoint_s", [2.0, 10.0])
def test_after_a_node_is_lost_with_its_disk_only_the_last_interval_is_redone(told, checkpoint_s):
    report = run_nodes(scenario(Trouble.LOST, 3, at=17.0, checkpoint_s=checkpoint_s))
    assert report.breaches == ()
    durable = [(at, int(whom[3])) for at, kind, *whom in told if kind == "durable" and whom[0] == "a0"]
    latest = sum(count for at, count in durable if at > 17.0 - checkpoint_s - 2.0)
    assert 0 < report.counts["redone"] <= latest
    assert sum(count for _, count in durable) > latest


def test_a_frozen_node_that_goes_on_after_its_leases_settles_and_writes_nothing_of_them(told):
    frozen = scenario(Trouble.FROZEN, 1)
    report = run_nodes(replace(frozen, troubles=(replace(frozen.troubles[0], seconds=60.0),)))
    assert report.breaches == ()
    (thawed_at,) = [at for at, kind, *_ in told if kind == "thawed"]
    others = {
        whom[1]: at for at, kind, *whom in told if kind == "leased" and whom[0] == "b0" and whom[2] != "1"
    }
    assert others
    late = [whom for at, kind, *whom in told if kind == "settled" and whom[0] == "a0" and at >= thawed_at]
    assert not [shard for _, shard, epoch in late if shard in others and epoch == "1"]
    assert "lease_lost" in {kind for _, kind, *_ in told}


@pytest.mark.parametrize("seconds", [15.0, 30.0, 60.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_queue_that_is_away_for_all_nodes_costs_no_lease_and_no_row_however_long(seconds, seed):
    """What is recorded meanwhile is kept, and whoever had a shard has it again before anyone else asks."""
    base = scenario(Trouble.NO_QUEUE, seed).base
    base = replace(base, job=replace(base.job, rows=1200), lease_s=15.0)
    outage = tuple(NodeTrouble(Trouble.NO_QUEUE, node, 4.0 + seed, seconds) for node in range(2))
    report = run_nodes(NodesScenario(base, (0.0, 0.0), (0.0, 7.0), outage, checkpoint_s=5.0))
    assert report.breaches == ()
    assert (report.counts.get("lease_lost", 0), report.counts["redone"]) == (0, 0)
    assert report.counts["sent"] <= 1.02 * 1200

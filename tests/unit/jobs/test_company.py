"""What a node sees of the others, and does for those that have nothing to send."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from dispatcher.errors import QueueUnreachableError
from dispatcher.jobs.company import FORGET_S, Company, Oneself, Presence
from dispatcher.jobs.elsewhere import Elsewhere
from dispatcher.model import NodeId
from dispatcher.queue.nodes import JobFigures, NodeFigures, NodeIdentity, NodeRecord, NodeState
from dispatcher.telemetry.metrics import Metrics

HUNGRY = NodeFigures(hungry=True)


class Clock:
    time = 100.0

    def now(self):
        return self.time

    def wall(self):
        return 1e9 + self.time

    async def sleep(self, _seconds):
        self._slept = asyncio.get_running_loop().create_future()
        await self._slept

    async def pass_time(self, seconds):
        for _ in range(seconds):
            await asyncio.sleep(0)
            self.time += 1
            self._slept.set_result(None)
            await asyncio.sleep(0)


class Stage:
    def __init__(self):
        self.clock, self.shared = Clock(), []
        oneself = Oneself(_identity("me"), NodeFigures, lambda: 0, self.shared.append)
        self.elsewhere, self._registry = Elsewhere(), CollectorRegistry()
        self.company = Company(oneself, self.elsewhere, Metrics(self._registry), self.clock)

    def counts(self):
        """The nodes by state, as the metric has them."""
        value = self._registry.get_sample_value
        return {state.value: value("dispatcher_nodes", {"state": state.value}) for state in Presence}

    def sees(self, **others):
        records = [
            NodeRecord(_identity(name), figures, 0.0, silent_s)
            for name, (figures, silent_s) in {**others, "me": (HUNGRY, 0.0)}.items()
        ]
        self.company.saw(records, {})


def _identity(name):
    return NodeIdentity(NodeId(name), "gpu1", 17, "0.1.0")


@pytest.fixture
def stage():
    return Stage()


def test_others_that_have_nothing_to_send_are_counted_and_this_one_is_not(stage):
    stage.sees(a=(HUNGRY, 1.0), b=(NodeFigures(), 1.0), c=(HUNGRY, 0.0))
    assert stage.shared == [2]


def test_where_nobody_is_hungry_nothing_is_shared_out(stage):
    stage.sees(a=(NodeFigures(), 1.0))
    assert stage.shared == []


def test_those_that_are_silent_or_take_nothing_more_get_nothing(stage):
    draining = NodeFigures(NodeState.DRAINING, hungry=True)
    stage.sees(a=(HUNGRY, 60.0), b=(draining, 0.0))
    assert stage.shared == []


def test_the_same_word_of_hunger_is_heard_once(stage):
    stage.sees(a=(HUNGRY, 0.5))
    stage.clock.time += 1.0
    stage.sees(a=(HUNGRY, 1.5))
    assert stage.shared == [1]
    stage.clock.time += 1.0
    stage.sees(a=(HUNGRY, 0.5))
    assert stage.shared == [1, 1]


# What is seen


def test_a_node_without_others_is_alone_and_active(stage):
    (only,) = stage.company.nodes()
    assert (only.identity, only.presence, only.silent_s) == (_identity("me"), Presence.ACTIVE, 0)
    assert (only.started_at, only.driven) == (stage.clock.wall(), 0)


def test_others_are_seen_as_they_told_last_with_the_jobs_that_they_drive(stage):
    draining = NodeFigures(NodeState.DRAINING, in_flight=3, shards_leased=2)
    records = [
        NodeRecord(_identity("a"), draining, 50.0, 1.0),
        NodeRecord(_identity("me"), HUNGRY, 40.0, 0.5),
    ]
    stage.company.saw(records, {"a": 2, "me": 9})
    me, other = stage.company.nodes()
    assert (other.presence, other.figures, other.driven) == (Presence.DRAINING, draining, 2)
    assert (me.identity.id, me.started_at, me.figures, me.driven) == ("me", 40.0, NodeFigures(), 0)


def test_one_that_is_not_heard_of_is_silent_and_what_it_had_in_hand_does_not_count(stage):
    busy = NodeFigures(jobs={"job": JobFigures(in_flight=4)})
    stage.sees(a=(busy, 9.0), b=(busy, 10.0))
    assert [node.presence for node in stage.company.nodes()] == [
        Presence.ACTIVE,
        Presence.SILENT,
        Presence.ACTIVE,
    ]
    assert stage.elsewhere.in_flight == {"job": 4}
    assert stage.counts() == {"active": 2, "draining": 0, "silent": 1}


class FakeNodes:
    """The queue's list of nodes: it answers what it is to, or not at all."""

    def __init__(self):
        self.records, self.forgotten = [], []

    async def list(self):
        if self.records is None:
            raise QueueUnreachableError("it restarts")
        return self.records

    async def holders(self):
        return {"job": "a", "job2": "a"}

    async def forget(self, silent_s):
        self.forgotten.append(silent_s)


async def test_while_the_queue_is_away_the_others_fall_silent_and_come_back(stage):
    nodes = FakeNodes()
    nodes.records = [NodeRecord(_identity("a"), NodeFigures(jobs={"job": JobFigures(in_flight=4)}), 0.0, 0.0)]
    looking = asyncio.create_task(stage.company.run(nodes, nodes))
    try:
        await stage.clock.pass_time(1)
        assert stage.counts()["active"] == 2
        assert max(node.driven for node in stage.company.nodes()) == 2
        records, nodes.records = nodes.records, None
        await stage.clock.pass_time(11)
        assert (stage.counts()["silent"], stage.elsewhere.in_flight) == (1, {})
        nodes.records = records
        await stage.clock.pass_time(1)
        assert (stage.counts()["silent"], stage.elsewhere.in_flight) == (0, {"job": 4})
        assert nodes.forgotten == [FORGET_S]
    finally:
        looking.cancel()
        await asyncio.wait([looking])

from random import Random

import pytest
from prometheus_client import CollectorRegistry
from virtual_loop import VirtualLoop

from dispatcher.config import PoolSettings
from dispatcher.model import (
    CanaryReport,
    Health,
    Judgement,
    ProbeReport,
    ServerId,
    ServerSpec,
    Verdict,
)
from dispatcher.pool.effects import AttemptEnd
from dispatcher.pool.pool import Pool
from dispatcher.pool.states import State
from dispatcher.telemetry.absences import Absences
from dispatcher.telemetry.metrics import Metrics

UP = ProbeReport(Health.UP)


def pytest_asyncio_loop_factories(config, item):
    return {"virtual": VirtualLoop}


def spec(name, **fields):
    return ServerSpec(ServerId(f"http://{name}"), f"http://{name}", **fields)


class Latest(Random):
    """No spread: what may come early comes at its latest."""

    def uniform(self, _a, b):
        return b


class Fleet:
    """A pool with a clock that the test moves, and shorthands for what happens to its servers."""

    def __init__(self, clock_now=None, *, log_prompts=False, **settings):
        self.time = 100.0
        clock_now = clock_now or (lambda: self.time)
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.absences = Absences(clock_now)
        ours = (self.metrics, clock_now, Latest(7), self.absences)
        self.pool = Pool(PoolSettings(**settings), *ours, log_prompts=log_prompts)

    def join(self, *names, **fields):
        """These servers are all members; returns the new ones."""
        return self.pool.set_members([spec(name, **fields) for name in names])

    def admit(self, name="s", **report):
        """A server that has passed its verification."""
        known = [server.spec for server in self.pool.servers.values()]
        (server,) = self.pool.set_members([*known, spec(name)])
        self.pool.probed(server, UP)
        self.verify(server, **report)
        assert server.state is State.ACTIVE
        return server

    def verify(self, server, **report):
        return self.pool.examined(server, ProbeReport(Health.UP, **report), CanaryReport())

    def load(self, server, count=1):
        for _ in range(count):
            server.took(self.time)

    def end(self, server, verdict, *, sent_at=None, model="m", repeated=False, **judgement):
        """An attempt ended like this, its permit given back already."""
        told = Judgement(verdict, message=verdict.value, **judgement)
        sent = self.time if sent_at is None else sent_at
        return self.pool.attempt_ended(server, AttemptEnd(told, sent, model, repeated))

    def suspect(self, server):
        self.end(server, Verdict.SERVER_FAULT)
        assert server.state is State.SUSPECT

    def evict(self, server):
        self.end(server, Verdict.SERVER_FAULT, hard=True)
        assert server.state is State.EVICTED

    def series_of(self, server):
        """Every sample that names this server."""
        samples = [sample for family in self.registry.collect() for sample in family.samples]
        return [sample for sample in samples if sample.labels.get("server") == server.spec.id]


@pytest.fixture
def fleet():
    return Fleet()


@pytest.fixture
def make_fleet():
    return Fleet

"""How soon a lost server is out of rotation, and that a busy one never is. Default settings, virtual time."""

from random import Random
from statistics import median

import pytest
from virtual_fleet import run_fleet

from dispatcher.config import PoolSettings
from dispatcher.pool.pulse import PULSE_S
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.simulation.rows import JobPlan, Lengths
from dispatcher.testing.simulation.scenario import ServerPlan

POOL = PoolSettings()
ENGINE = EngineSettings(
    max_sequences=64, decode_step_s=0.03, decode_step_growth_s=0.0005, kv_tokens=2_000_000
)
OUT = ("server_suspect", "server_evicted", "server_verifying", "server_mismatched", "server_paused")
NEVER_S = 1e6
SLOWEST_S = 40.0
"""What `/health` took on a busy healthy server, at most (public reports)."""


def rows(mean=1000.0, spread=0.5):
    return JobPlan(100_000, Lengths(300.0), Lengths(mean, spread, 60_000))


# Lost servers


def out_after(loss, *, seed, plan=None, job=None, until_s=200.0, load_s=60.0):
    """Let this happen to the first of two servers under load: seconds until it is out, and evicted."""
    at = load_s + Random(f"phase {seed}").uniform(0, 15)

    def weather(loop, servers):
        loop.call_at(at, loss, servers[0])

    plan = plan or ServerPlan(ENGINE, limit=64)
    course = run_fleet([plan] * 2, job or rows(), seed=seed, weather=weather, until_s=at + until_s)
    out = [said for said in course.moves(0, *OUT) if said.at >= at]
    assert out, "it was never missed"
    assert not [said for said in course.moves(1, *OUT) if said.at >= at], "the other server is well"
    evicted = [said.at - at for said in out if said.event == "server_evicted"]
    return out[0].at - at, evicted[0] if evicted else None


def freeze(health_s=0.0, metrics_s=0.0):
    def loss(server):
        server.stand_still(frozen=True)
        server.manners.slow_down(health_s)
        server.manners.metrics_s = metrics_s

    return loss


HANGS = {
    "health green, counters frozen": freeze(),
    "health slow": freeze(health_s=SLOWEST_S),
    "health almost too slow": freeze(health_s=9.0),
    "metrics slow": freeze(metrics_s=SLOWEST_S),
    "nothing answers": freeze(health_s=NEVER_S, metrics_s=NEVER_S),
}


@pytest.mark.parametrize("metrics", [True, False], ids=["with metrics", "without metrics"])
@pytest.mark.parametrize("hang", HANGS)
def test_a_hung_server_is_out_within_the_stall_and_one_probe(hang, metrics):
    """Out: given nothing more. Evicted, and its requests resent, when health and canary had their time."""
    plan = ServerPlan(ENGINE, limit=64, metrics=metrics)
    for seed in range(4):
        out_s, evicted_s = out_after(HANGS[hang], seed=seed, plan=plan)
        assert out_s <= POOL.stall_s + POOL.scrape_interval_s + 2 * PULSE_S
        assert out_s <= POOL.stall_s + POOL.probe_interval_s + POOL.probe_timeout_s
        assert evicted_s <= out_s + 2 * POOL.probe_timeout_s + 2 * PULSE_S


LOSSES = {
    "engine dead": lambda server: server.kill(back_after_s=300.0),
    "reset": lambda server: server.restart(back_after_s=300.0),
    "terminated, open requests silent": lambda server: server.terminate(back_after_s=300.0),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_refused_or_reset_server_is_out_within_a_second_under_load(loss):
    """Under load: it answered six times a second, or more often."""
    outs = [out_after(LOSSES[loss], seed=seed, job=rows(150.0), until_s=30.0)[0] for seed in range(12)]
    assert max(outs) <= 1.0, f"median {median(outs):.2f} s, worst {max(outs):.2f} s"


def test_a_server_that_refuses_with_nothing_in_flight_is_out_within_a_probe_interval():
    """Its two rows are long since answered, and a third keeps the job open on the other server."""
    job = JobPlan(3, Lengths(300.0), Lengths(2000.0, 0.0))
    for seed in range(6):
        plans = [ServerPlan(ENGINE, limit=1), ServerPlan(ENGINE, limit=1, joins_at=20.0)]
        at = 80.0 + Random(seed).uniform(0, POOL.probe_interval_s)

        def weather(loop, servers, at=at):
            loop.call_at(at, servers[1].terminate, 300.0)

        course = run_fleet(
            plans, job, seed=seed, weather=weather, until_s=at + 30.0, dispatch={"hedge": False}
        )
        (evicted,) = course.moves(1, "server_evicted")
        assert evicted.at - at <= POOL.probe_interval_s + 2 * PULSE_S


# Busy servers


def busy_hour(job, seed, *, slow):
    """An hour of four full servers, whose probes and figures take up to 40 s once they are full."""
    random = Random(f"weather {seed}")

    def change(loop, server):
        server.manners.slow_down(random.uniform(0.0, SLOWEST_S))
        server.manners.metrics_s = random.uniform(0.0, SLOWEST_S)
        loop.call_later(random.uniform(2.0, 8.0), change, loop, server)

    def weather(loop, servers):
        for server in servers if slow else ():
            loop.call_at(30.0, change, loop, server)

    return run_fleet([ServerPlan(ENGINE)] * 4, job, seed=seed, weather=weather, until_s=3600.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("mean", "spread"),
    [(1500.0, 0.5), (12_000.0, 0.0), (25_000.0, 0.2)],
    ids=["minutes each", "12 minutes each, in step", "25 minutes each"],
)
def test_a_busy_fleet_with_slow_probes_loses_no_server_and_no_throughput_in_an_hour(mean, spread, seed):
    slow, quick = (busy_hour(rows(mean, spread), seed, slow=slow) for slow in (True, False))
    for course in (slow, quick):
        assert (course.count("server_suspect"), course.count("server_evicted")) == (0, 0)
    made = [sum(server.tokens_made() for server in course.servers) for course in (slow, quick)]
    assert slow.answered >= 0.98 * quick.answered
    assert made[0] >= 0.98 * made[1]

"""How soon a lost server is out of rotation, over real HTTP: from the event to the pool's move."""

import asyncio
from statistics import median

import pytest
from failure_stage import PROBE_S, STALL_S, fleet, rows, until

from dispatcher.config import PoolSettings
from dispatcher.pool.pulse import PULSE_S
from dispatcher.testing import Die, EngineSettings, FakeServerSettings, Hang, Match, Respond, Slow
from dispatcher.testing.faults import Ending

pytestmark = pytest.mark.timeout(90)
DEFAULTS = PoolSettings()
BUSY = FakeServerSettings(engine=EngineSettings(max_sequences=16, decode_step_s=0.005))
"""About a hundred answers a second with 16 requests open."""
SEEN_S = 0.1
"""A look at the pool every 10 ms, and a machine that is busy with other tests."""


def now():
    return asyncio.get_running_loop().time()


async def end_process(server, ending):
    await server.die(Die(seconds=None, ending=ending, linger_s=0))


LOSSES = {
    "it listens no more, open requests go on": lambda server: server.stop_listening(),
    "all connections reset": lambda server: end_process(server, Ending.RESET),
    "engine dead": lambda server: server.die(Die(seconds=None)),
    "plain errors": lambda server: server.die(Die(seconds=None, ending=Ending.EMPTY)),
    "it listens no more, open requests silent": lambda server: end_process(server, Ending.SILENCE),
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_refused_or_reset_server_is_out_within_a_second_under_load_with_default_settings(
    stage, loss, record_property
):
    stage.base = {}
    async with fleet(5, BUSY) as servers:
        lost_at = {}

        async def storm(job):
            await until(lambda: all(server.in_flight >= 16 for server in servers))
            for server in servers[:4]:
                await asyncio.sleep(0.15)
                lost_at[server] = now()
                await LOSSES[loss](server)

        result = await stage.run(servers, rows(1000), weather=storm, pool={"limit": 16})
        assert len(result.successes) == 1000
        outs = [result.out_at(server, at) - at for server, at in lost_at.items()]
        record_property("out_s", [round(out_s, 3) for out_s in outs])
        assert max(outs) <= 1.0 + SEEN_S, f"median {median(outs):.2f} s, worst {max(outs):.2f} s"
        for server, at in lost_at.items():
            out_at = result.out_at(server, at) + SEEN_S  # what was on its way may still arrive
            assert not [each for each in server.requests if each.arrived_at > out_at], "it is given nothing"


async def test_a_server_that_refuses_with_nothing_in_flight_is_out_within_a_probe_interval(stage):
    stage.base = {}
    async with fleet(2, BUSY) as (working, idle):
        for server in (working, idle):
            server.inject(Slow(9.0), Match(text="row-0 "))
        lost_at = []

        async def stop(job):
            await until(lambda: job.snapshot().done.succeeded == 19)
            (stopped,) = [server for server in (working, idle) if server.in_flight == 0]
            await asyncio.sleep(1.0)
            lost_at.extend((stopped, now()))
            await stopped.stop_listening()

        result = await stage.run([working, idle], rows(20), weather=stop, dispatch={"hedge": False})
        stopped, at = lost_at
        assert result.out_at(stopped, at) - at <= DEFAULTS.probe_interval_s + 2 * PULSE_S + SEEN_S
        assert len(result.successes) == 20


HANGS = {
    "health green": (),
    "no metrics": ((Respond(404), "/metrics"),),
    "health slow": ((Slow(5.0), "/health"),),
    "metrics slow": ((Slow(5.0), "/metrics"),),
    "nothing answers": ((Hang(), "/health"), (Hang(), "/metrics"), (Hang(), "/v1/models")),
}


@pytest.mark.parametrize("hang", HANGS)
async def test_a_hung_server_is_out_within_the_stall_and_one_probe(stage, hang, record_property):
    async with fleet(2, BUSY) as (hung, fine):
        frozen_at = []
        if hang == "no metrics":
            hung.inject(Respond(404), Match(route="/metrics"))

        async def freeze(job):
            await until(lambda: hung.in_flight >= 16)
            frozen_at.append(now())
            hung.freeze()
            for fault, route in HANGS[hang]:
                hung.inject(fault, Match(route=route))

        result = await stage.run([hung, fine], rows(160), weather=freeze, pool={"limit": 16})
        assert len(result.successes) == 160
        out_s = result.out_at(hung, frozen_at[0]) - frozen_at[0]
        record_property("out_s", round(out_s, 3))
        assert out_s <= STALL_S + PROBE_S + 2 * PULSE_S + SEEN_S
        assert result.evicted_at(hung) - frozen_at[0] <= out_s + 2 * 1.0 + SEEN_S, (
            "two probes time out after 1 s"
        )
        assert result.evictions(fine) == 0

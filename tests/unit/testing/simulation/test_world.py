"""What simulated servers do, as the transport and the prober show it: shared/VLLM.md under virtual time."""

import asyncio
from random import Random

import pytest

from dispatcher.model import (
    Break,
    BreakKind,
    CanaryFault,
    ErrorCode,
    Health,
    ServerId,
    ServerSpec,
    Verdict,
)
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.simulation import faults
from dispatcher.testing.simulation.ledger import Ledger, NodeWitness
from dispatcher.testing.simulation.rows import JobPlan, Lengths, RowKind, Rows
from dispatcher.testing.simulation.scenario import SPOILING, Fault, FaultKind, ServerPlan
from dispatcher.testing.simulation.servers import SimulatedServer
from dispatcher.testing.simulation.virtual_loop import run_virtually
from dispatcher.testing.simulation.world import SimulatedProber, SimulatedTransport
from dispatcher.vllm.verdicts import judge

ENGINE = EngineSettings(
    max_sequences=2, decode_step_s=0.5, decode_step_growth_s=0.0, prefill_tokens_per_s=1e12
)
ID = ServerId("http://s0")
SPEC = ServerSpec(ID, ID)
ODD = {1: RowKind.TOO_LONG, 2: RowKind.BROKEN, 3: RowKind.NAN, 4: RowKind.SILENT, 5: RowKind.POISON}


class World:
    """One simulated server with everything that talks to it. A row takes 4 tokens, 2 seconds."""

    def __init__(self, *happening, **plan):
        loop = asyncio.get_running_loop()
        self.rows = Rows(JobPlan(10, Lengths(10, 0), Lengths(4, 0), odd=ODD), seed=1)
        plan = {"latency_s": 0.0, **plan}
        self.server = SimulatedServer(ID, ServerPlan(ENGINE, **plan), loop, Random(1))
        self.ledger = Ledger(loop.time)
        witness = NodeWitness("n", self.ledger)
        self.transport = SimulatedTransport({ID: self.server}, self.rows, witness)
        self.prober = SimulatedProber({ID: self.server}, witness, probe_timeout_s=10.0)
        faults.schedule(happening, [self.server], self.ledger, loop)

    async def send(self, index=0, timeout_s=None):
        return await self.transport.send(SPEC, self.rows.request(index), "id", timeout_s)

    def judge(self, ending, index=0):
        return judge(ending, self.rows.request(index), {"model-a": "model-a"})


def in_world(act, *happening, **plan):
    async def main():
        return await act(World(*happening, **plan))

    return run_virtually(main())


def now():
    return round(asyncio.get_running_loop().time(), 6)  # a prompt takes 0.01 ns


def fault(kind, at=1.0, seconds=5.0, share=1.0):
    return Fault(kind, 0, at, seconds, share)


def test_an_answer_takes_the_engines_time_and_is_a_success_to_the_real_judge():
    async def act(world):
        ending = await world.send()
        judgement = world.judge(ending)
        return now(), judgement.verdict, judgement.tokens.completion, judgement.body == ending.body

    assert in_world(act) == (2.0, Verdict.SUCCESS, 4, True)


def test_requests_beyond_the_slots_wait_for_their_turn():
    async def act(world):
        async def timed():
            await world.send()
            return now()

        return await asyncio.gather(*(timed() for _ in range(4)))

    assert in_world(act) == [2.0, 2.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("index", "verdict", "code"),
    [
        (1, Verdict.REQUEST_FAULT, ErrorCode.CONTEXT_LENGTH),
        (2, Verdict.DOUBTFUL, ErrorCode.SERVER_ERROR),
        (3, Verdict.SUCCESS, None),
    ],
)
def test_odd_rows_are_answered_as_their_kind_says(index, verdict, code):
    async def act(world):
        judgement = world.judge(await world.send(index), index)
        return judgement.verdict, judgement.code

    assert in_world(act) == (verdict, code)


def test_a_silent_row_is_ended_by_its_deadline_alone():
    async def act(world):
        return await world.send(4, timeout_s=7.0), now(), world.server.open

    assert in_world(act) == (Break(BreakKind.TIMED_OUT), 7.0, 0)


def test_a_poison_row_kills_its_server_and_everyone_there_is_told():
    async def act(world):
        endings = await asyncio.gather(world.send(0), world.send(5))
        await asyncio.sleep(1)
        return [world.judge(ending).hard for ending in endings], await world.send()

    assert in_world(act) == ([True, True], Break(BreakKind.REFUSED))


def test_a_killed_engine_fails_what_is_open_and_health_is_good_a_little_longer():
    async def act(world):
        ending = await world.send()
        during = await world.prober.probe(SPEC)
        await asyncio.sleep(1)
        after = await world.prober.probe(SPEC)
        await asyncio.sleep(10)
        return world.judge(ending).hard, during.health, after.health, (await world.send()).status

    assert in_world(act, fault(FaultKind.KILLED)) == (True, Health.UP, Health.REFUSED, 200)


def test_a_terminated_server_refuses_at_once_and_leaves_open_requests_in_silence():
    async def act(world):
        sending = asyncio.create_task(world.send())
        await asyncio.sleep(1.5)
        refused = await world.send()
        await asyncio.sleep(20)
        silent = not sending.done()
        return refused, silent, await sending, now()

    expected = (Break(BreakKind.REFUSED), True, Break(BreakKind.RESET), 31.0)
    assert in_world(act, fault(FaultKind.TERMINATED, seconds=60.0)) == expected


def test_a_frozen_engine_has_good_health_no_load_and_no_answers():
    async def act(world):
        sending = asyncio.create_task(world.send())
        await asyncio.sleep(3)
        health, telemetry = (await world.prober.probe(SPEC)).health, await world.prober.scrape(SPEC)
        canary = await world.prober.canary(SPEC, "model-a")
        frozen = health, telemetry.running, telemetry.generation_tokens_total, canary.fault
        await sending
        return frozen, now()

    frozen = (Health.UP, 0.0, 2.0, CanaryFault.SLOW)
    assert in_world(act, fault(FaultKind.FROZEN, seconds=20.0)) == (frozen, 22.0)


def test_slow_health_says_nothing_after_the_probes_patience():
    async def act(world):
        await asyncio.sleep(2)
        return (await world.prober.probe(SPEC)).health, now()

    assert in_world(act, fault(FaultKind.SLOW_HEALTH)) == (Health.SLOW, 12.0)


def test_a_black_hole_takes_no_connection_and_gives_back_what_was_on_its_way():
    async def act(world):
        sending = asyncio.create_task(world.send())
        await asyncio.sleep(2)
        ending = await world.send()
        health = (await world.prober.probe(SPEC)).health
        return ending, health, (await sending).status, now()

    expected = (Break(BreakKind.CONNECT_TIMED_OUT), Health.UNREACHABLE, 200, 11.0)
    assert in_world(act, fault(FaultKind.UNREACHABLE, seconds=10.0)) == expected


def test_a_full_server_refuses_what_would_have_to_wait_and_this_is_overload():
    async def act(world):
        running = [asyncio.create_task(world.send()) for _ in range(2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ending = await world.send()
        await asyncio.gather(*running)
        return judge(ending, world.rows.request(0), None, healthy=True).verdict

    assert in_world(act, waiting_max=0) is Verdict.OVERLOAD


def test_resets_break_what_is_open_and_what_comes():
    async def act(world):
        return await world.send(), await world.send(), now()

    reset = Break(BreakKind.RESET)
    assert in_world(act, fault(FaultKind.RESETTING)) == (reset, reset, 1.05)


@pytest.mark.parametrize("kind", SPOILING)
def test_a_spoilt_answer_is_no_success_and_its_row_is_noted_where_it_is_charged(kind):
    async def act(world):
        verdict = world.judge(await world.send()).verdict
        return verdict, world.server.spoilt[0]

    mismatch = (Verdict.MISMATCH, 0)
    expected = mismatch if kind is FaultKind.MISNAMING else (Verdict.DOUBTFUL, 1)
    assert in_world(act, fault(kind)) == expected


def test_a_swapped_server_comes_back_as_another_process_with_another_model_and_later_its_own():
    async def act(world):
        before = await world.prober.inspect(SPEC)
        await asyncio.sleep(3)
        during = await world.prober.inspect(SPEC)
        missing = world.judge(await world.send()).code
        await asyncio.sleep(10)
        after = await world.prober.inspect(SPEC)
        starts = [report.started_at for report in (before, during, after)]
        return [*(list(r.models) for r in (before, during, after))], missing, starts == sorted(set(starts))

    models = [["model-a"], ["another-model"], ["model-a"]]
    assert in_world(act, fault(FaultKind.SWAPPED)) == (models, ErrorCode.MODEL_NOT_FOUND, True)


def test_a_sleeping_server_says_so():
    async def act(world):
        await asyncio.sleep(2)
        asleep = (await world.prober.inspect(SPEC)).sleeping
        await asyncio.sleep(10)
        return asleep, (await world.prober.inspect(SPEC)).sleeping

    assert in_world(act, fault(FaultKind.ASLEEP)) == (True, False)


def test_a_server_that_joins_late_refuses_until_then():
    async def act(world):
        early = (await world.prober.probe(SPEC)).health
        await asyncio.sleep(5)
        return early, (await world.prober.probe(SPEC)).health

    assert in_world(act, joins_at=4.0) == (Health.REFUSED, Health.UP)


def test_a_client_that_goes_away_frees_its_place_in_the_engine():
    async def act(world):
        leaving = [asyncio.create_task(world.send()) for _ in range(2)]
        await asyncio.sleep(1)
        for task in leaving:
            task.cancel()
        await asyncio.wait(leaving)
        await world.send()
        return now(), world.server.telemetry().running

    assert in_world(act) == (3.0, 0.0)


def test_the_canary_is_answered_by_the_engine_and_witnessed():
    async def act(world):
        report = await world.prober.canary(SPEC, "model-a")
        return report.fault, now(), world.ledger.counts["canary"]

    assert in_world(act) == (None, 0.5, 1)


def test_a_server_without_metrics_tells_nothing():
    async def act(world):
        return await world.prober.scrape(SPEC), (await world.prober.inspect(SPEC)).started_at

    assert in_world(act, metrics=False) == (None, None)

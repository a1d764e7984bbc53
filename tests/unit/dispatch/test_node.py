import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from dispatcher.dispatch.ledger import HINDERED_MAX
from dispatcher.dispatch.node import TICK_S
from dispatcher.dispatch.quarantine import SUSPECT_PAUSE_S
from dispatcher.errors import LeaseLostError, ServersUnavailableError, StorageError
from dispatcher.model import Answer, Break, BreakKind, ErrorCode, Health, Job, JobId, Shard, Tally
from dispatcher.pool.states import Event, State


def leases_of(bench):
    return [shard.lease for shard in bench.desk.shards]


async def started(bench, seconds, **how):
    running = asyncio.create_task(bench.run(**how))
    await asyncio.sleep(seconds)
    return running


async def test_every_request_is_sent_once_and_recorded_once(bench):
    async with bench(rows=103, shard_size=10) as b:
        await b.run()
        b.assert_answered_once()
        assert len(b.network.sends()) == 103
        assert (await b.queue.depth()).shards_settled == 11
        assert b.recorder.opened == {}


async def test_a_shard_is_made_durable_as_soon_as_its_last_row_is_answered(bench):
    async with bench(rows=25, shard_size=10) as b:
        await b.run()
        assert sorted(b.recorder.hastened) == [0, 1, 2]


async def test_every_send_has_an_id_of_its_own(bench):
    async with bench() as b:
        b.server("a").ending = Answer(500, b"")
        await b.run()
        assert len(set(b.network.request_ids)) == len(b.network.request_ids) > 20


async def test_an_empty_queue_is_drained_at_once(bench):
    async with bench(rows=0) as b:
        await b.run()
        assert asyncio.get_running_loop().time() < 0.1


async def test_the_last_row_does_not_wait_for_the_next_look_at_the_queue(bench):
    async with bench(rows=1) as b:
        b.server("a").takes_s = b.server("b").takes_s = 0.05
        await b.run()
        assert asyncio.get_running_loop().time() < 0.05 + 0.2 + TICK_S + 0.1


async def test_the_queue_is_not_asked_again_for_every_row_once_it_is_dry(bench):
    async with bench(rows=200, shard_size=50, pool={"limit": 8}) as b:
        await b.run()
        seconds = asyncio.get_running_loop().time()
        assert len([call for _, call in b.queue.calls if call == "lease"]) < seconds + 10


async def test_work_that_comes_later_is_begun_when_the_queue_rings(bench):
    async with bench(rows=0) as b:
        running = await started(b, 5.5, until_drained=False)
        b.queue.add(Job(JobId("job")), Shard(0, 0, 3, 0, 0))
        await asyncio.sleep(0.1)
        assert [index for _, index in b.network.sends()] == [0, 1, 2]
        b.node.stop()
        await running


async def test_what_an_earlier_run_has_finished_is_not_sent(bench):
    async with bench(rows=12) as b:
        b.recorder.finished_before = frozenset({0, 1, 2, 3, 5, 11})
        await b.run()
        assert sorted(index for _, index in b.network.sends()) == [4, 6, 7, 8, 9, 10]
        assert b.node.progress.total.succeeded == 12
        assert (await b.queue.depth()).drained


async def test_a_request_that_is_withheld_ends_at_once_and_is_never_sent(bench):
    async with bench(rows=12) as b:
        b.payloads.withheld = dict.fromkeys((1, 4, 5, 6, 7), "no topic")  # all of the second shard
        await b.run()
        assert sorted(index for _, index in b.network.sends()) == [0, 2, 3, 8, 9, 10, 11]
        outcomes = b.outcomes()
        assert {index for index, outcome in outcomes.items() if outcome.code is ErrorCode.NOT_ASKED} == {
            1,
            4,
            5,
            6,
            7,
        }
        assert (outcomes[1].message, outcomes[1].provenance) == ("no topic", None)
        assert (await b.queue.depth()).drained


async def test_what_is_withheld_and_recorded_has_no_second_outcome(bench):
    async with bench(rows=4) as b:
        b.payloads.withheld = dict.fromkeys((0, 1), "no topic")
        b.recorder.finished_before = frozenset({0, 2})
        await b.run()
        assert set(b.outcomes()) == {1, 3}


async def test_rows_fail_with_their_code_after_their_charged_attempts(bench):
    async with bench(rows=4) as b:
        for name in "ab":
            b.server(name).ending = lambda request: Answer(500 if request.index == 2 else 200, b"{}")
        await b.run()
        outcomes = b.outcomes()
        assert outcomes[2].code is ErrorCode.SERVER_ERROR
        assert outcomes[2].provenance.attempts == 3
        assert {index for _, index in b.server("a").sent} | {0} >= {2}
        assert {index for _, index in b.server("b").sent} | {0} >= {2}
        assert [outcomes[index].ok for index in (0, 1, 3)] == [True] * 3


async def test_a_timeout_is_charged_to_the_request(bench):
    async with bench(rows=2, job={"request_timeout_s": 5.0}) as b:
        for name in "ab":
            b.server(name).takes_s = 60
        await b.run()
        assert len(b.network.sends()) == 6
        assert all(not outcome.ok for outcome in b.outcomes().values())


# Servers that fail


async def test_a_server_that_dies_costs_its_requests_one_free_resend_elsewhere(bench):
    async with bench(rows=40, max_attempts=3) as b:
        b.server("a").takes_s = b.server("b").takes_s = 10
        running = await started(b, 5)
        held = b.server("a").open
        assert held > 0
        b.server("a").die()
        await running
        b.assert_answered_once()
        assert len(b.network.sends()) == 40 + held
        assert b.state("a") is State.EVICTED
        assert b.pool.servers["a"].record.evictions == 1


@pytest.mark.parametrize("canary", [True, False])
async def test_a_server_that_hangs_has_its_requests_given_up_and_resent(bench, canary):
    async with bench(rows=40, hedge=False, pool={"stall_s": 20, "canary": canary}) as b:
        running = await started(b, 0.5)
        b.server("a").deaf = True
        await running
        b.assert_answered_once()
        assert b.pool.servers["a"].record.evictions >= 1


async def test_what_was_at_a_server_that_hung_does_not_meet_the_next_one_at_once(bench):
    async with bench(rows=40, hedge=False, pool={"stall_s": 20}) as b:
        running = await started(b, 0.5)
        b.server("a").deaf = True
        while b.pool.servers["a"].record.evictions == 0:  # noqa: ASYNC110  # time is virtual
            await asyncio.sleep(0.01)
        evicted_at = asyncio.get_running_loop().time()
        await running
        at_both = {index for _, index in b.server("a").sent} & {index for _, index in b.server("b").sent}
        again = [at for at, index in b.server("b").sent if index in at_both]
        assert again
        assert min(again) >= evicted_at + SUSPECT_PAUSE_S - 0.02


async def test_no_usable_server_is_no_error_and_burns_no_attempt(bench):
    async with bench(rows=20, job={"max_attempts": 1}) as b:
        b.server("a").takes_s = b.server("b").takes_s = 10
        running = await started(b, 5)
        for name in "ab":
            b.server(name).die()
        await asyncio.sleep(1000)
        assert not running.done()
        assert b.node.waiting.models == ("m",)
        assert b.registry.get_sample_value("dispatcher_waiting_for_servers") == 1
        sends = len(b.network.sends())
        await asyncio.sleep(1000)
        assert len(b.network.sends()) == sends
        b.server("b").revive()
        await running
        b.assert_answered_once()
        assert b.node.waiting.models == ()


async def test_a_server_that_joins_later_is_used_without_a_restart(bench):
    async with bench(servers=()) as b:
        running = await started(b, 50)
        b.watch("new")
        await running
        b.assert_answered_once()


async def test_waiting_for_servers_ends_after_the_users_bound_and_keeps_everything(bench):
    async with bench(wait_for_servers_s=30.0, servers=("a",)) as b:
        b.server("a").die()
        with pytest.raises(ExceptionGroup) as caught:
            await b.run()
        assert caught.group_contains(ServersUnavailableError, match="no server for m within 30 s")
        assert 30 <= asyncio.get_running_loop().time() < 31
        assert b.recorder.outcomes == {}


async def test_a_503_asks_health_and_an_overloaded_server_stays(bench):
    async with bench(rows=30, servers=("a",)) as b:
        server = b.server("a")
        server.ending = lambda _request: Answer(503 if server.open > 4 else 200, b"{}")
        await b.run()
        b.assert_answered_once()
        assert b.pool.servers["a"].record.evictions == 0


async def test_a_503_of_an_unhealthy_server_evicts_it(bench):
    async with bench(rows=30) as b:
        running = await started(b, 0.5)
        b.server("a").ending, b.server("a").health = Answer(503, b""), Health.DOWN
        await running
        b.assert_answered_once()
        assert b.pool.servers["a"].record.evictions == 1


async def test_the_permit_is_not_held_while_health_is_asked(bench):
    async with bench(rows=4, servers=("a",)) as b:
        b.server("a").ending = Answer(503, b"")
        probe = b.network.probe
        held = []

        async def slow(server):
            held.append(b.pool.servers["a"].in_flight)
            await asyncio.sleep(3)
            return await probe(server)

        running = await started(b, 0.5)
        b.monitor._prober.probe = slow
        await asyncio.sleep(1.2)
        assert held
        assert b.pool.servers["a"].in_flight == 0
        b.server("a").ending = Answer(200, b"{}")
        await running


async def test_an_attempt_that_is_closed_before_its_task_first_ran_gives_its_permit_back(bench):
    async with bench(rows=16, servers=("a", "b")) as b:
        pump = b.node._pump

        def pump_and_give_up():
            pump()
            server = b.pool.servers["a"]
            if server.in_flight and server.record.evictions == 0:
                lost, look = b.pool._moves.make(server, Event.DIED, "gone")
                b.monitor.carry_out((replace(lost, after_s=0.0), look))

        b.node._pump = pump_and_give_up
        await b.run()
        b.assert_answered_once()
        assert all(at > 2 for at, _ in b.server("a").sent), "nothing went to it before it was readmitted"


async def test_a_fault_of_this_machine_is_neither_charged_nor_the_servers(bench):
    async with bench(rows=12, servers=("a",)) as b:
        b.server("a").ending = lambda _request: (
            Break(BreakKind.LOCAL) if asyncio.get_running_loop().time() < 20 else Answer(200, b"{}")
        )
        await b.run()
        b.assert_answered_once()
        assert b.pool.servers["a"].record.failed == 0
        assert b.desk.ceiling.value < 12


async def test_no_more_is_open_than_the_process_can_hold(bench):
    async with bench(rows=40, ceiling=5) as b:
        await b.run()
        b.assert_answered_once()
        assert b.network.open_most == 5


# Stopping


async def test_drain_lets_open_requests_end_and_sends_nothing_more(bench):
    async with bench(rows=200, shard_size=50) as b:
        b.server("a").takes_s = b.server("b").takes_s = 10
        running = await started(b, 5)
        sends = len(b.network.sends())
        await b.node.drain()
        await running
        assert len(b.network.sends()) == sends
        assert len(b.recorder.outcomes) == sends
        assert b.node.progress.tally.succeeded == sends


async def test_drain_is_bounded_and_closes_what_is_left(bench):
    async with bench(rows=20, drain_s=30) as b:
        running = await started(b, 0.5)
        b.server("a").takes_s = b.server("b").takes_s = 1000
        await asyncio.sleep(2)
        began = asyncio.get_running_loop().time()
        await b.node.drain()
        await running
        assert 30 <= asyncio.get_running_loop().time() - began < 31


async def test_a_second_stop_ends_at_once_and_ends_the_drain_as_well(bench):
    async with bench(rows=20) as b:
        b.server("a").takes_s = b.server("b").takes_s = 1000
        running = await started(b, 2)
        draining = asyncio.create_task(b.node.drain())
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        b.node.stop()
        b.node.stop()
        await running
        await draining
        assert asyncio.get_running_loop().time() - began < 0.1
        assert [server.state for server in b.pool.servers.values()] == [State.ACTIVE] * 2
        assert sum(server.record.failed for server in b.pool.servers.values()) == 0


async def test_stop_does_not_wait_for_a_question_about_health(bench):
    async with bench(rows=4, servers=("a",)) as b:
        b.server("a").ending = Answer(503, b"")

        async def never(server):
            await asyncio.sleep(1e6)

        running = await started(b, 0.5)
        b.monitor._prober.probe = never
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        b.node.stop()
        await running
        assert asyncio.get_running_loop().time() - began < 0.1


@pytest.mark.parametrize("broken", [False, True])
async def test_stop_ends_a_node_that_waits_for_work(bench, broken):
    async with bench(rows=0) as b:
        b.queue.broken = broken
        running = await started(b, 10.3, until_drained=False)
        began = asyncio.get_running_loop().time()
        b.node.stop()
        await running
        assert asyncio.get_running_loop().time() - began < 0.1


async def test_a_run_that_ends_ends_its_drain(bench):
    async with bench(rows=20, wait_for_servers_s=5.0) as b:
        b.server("a").takes_s = b.server("b").takes_s = 100
        running = await started(b, 2)
        draining = asyncio.create_task(b.node.drain())
        await asyncio.sleep(1)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        began = asyncio.get_running_loop().time()
        await draining
        assert asyncio.get_running_loop().time() - began < 0.1


@pytest.mark.parametrize(
    "at_ms", [0, 1, 2, 3, 5, 9, 13, 14, 20, 250, 999, 1013, 1023, 1200, 1215, 1400, 2100]
)
@pytest.mark.parametrize("how", ["cancel", "stop"])
async def test_however_and_whenever_a_run_is_ended_nothing_is_left(bench, at_ms, how):
    async with bench(rows=64, shard_size=5) as b:
        b.server("b").ending = Answer(503, b"")
        running = await started(b, at_ms / 1000)
        if how == "cancel":
            running.cancel()
        else:
            b.node.stop()
        with suppress(asyncio.CancelledError):
            await running
        assert all(len(outcomes) == 1 for outcomes in b.recorder.outcomes.values())


@pytest.mark.parametrize("turns", range(40))
async def test_a_run_that_is_cancelled_in_any_turn_of_the_loop_leaves_nothing(bench, turns):
    async with bench(rows=12, shard_size=3) as b:
        await asyncio.sleep(0.02)
        running = asyncio.create_task(b.run())
        for _ in range(turns):
            await asyncio.sleep(0 if turns % 2 else 0.0005)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@pytest.mark.parametrize("how", ["cancel", "stop"])
async def test_attempts_whose_tasks_never_run_give_their_permits_back(bench, how):
    async with bench(rows=600, shard_size=600) as b:
        b.recorder.obstacle = "no space left on device"
        running = await started(b, 2)
        b.recorder.obstacle = None
        if how == "cancel":
            running.cancel()
        b.node.capacity_changed()
        assert b.desk.in_flight > 0
        if how == "stop":
            b.node.stop()
        with suppress(asyncio.CancelledError):
            await running
        assert b.network.sends() == []


async def test_stop_does_not_wait_for_the_opening_of_all_that_was_leased(bench):
    async with bench(rows=40) as b:
        read = b.payloads.read

        async def slow(lease):
            await asyncio.sleep(1)
            return await read(lease)

        b.payloads.read = slow
        running = await started(b, 0.5)
        b.node.stop()
        await running
        assert asyncio.get_running_loop().time() < 1.1


async def test_stop_does_not_wait_for_a_queue_that_cannot_be_told(bench):
    async with bench(rows=4) as b:

        async def broken(*_):
            raise StorageError("out of reach")

        b.queue.settle = broken
        running = await started(b, 60)
        assert b.node.obstacle == "out of reach"
        began = asyncio.get_running_loop().time()
        b.node.stop()
        await running
        assert asyncio.get_running_loop().time() - began < 0.1


async def test_drain_waits_until_finished_shards_are_settled(bench):
    async with bench(rows=4) as b:
        settle = b.queue.settle

        async def slow(*told):
            await asyncio.sleep(5)
            await settle(*told)

        b.queue.settle = slow
        running = await started(b, 2)
        assert b.desk.unrecorded == 0
        await b.node.drain()
        await running
        assert (await b.queue.depth()).shards_settled == 1


async def test_capacity_that_changes_while_a_run_ends_starts_nothing(bench):
    async with bench(rows=200, shard_size=50) as b:
        running = await started(b, 3)
        running.cancel()
        for _ in range(20):
            b.node.capacity_changed()
            await asyncio.sleep(0)
        with suppress(asyncio.CancelledError):
            await running


async def test_a_disk_that_has_stopped_does_not_hold_up_the_end(bench):
    async with bench(rows=8) as b:
        b.recorder.takes_s = 1e6
        running = await started(b, 3)
        began = asyncio.get_running_loop().time()
        b.node.stop()
        await running
        assert 29 < asyncio.get_running_loop().time() - began < 31


# The queue


async def test_a_queue_that_fails_for_a_while_is_told_and_waited_for(bench):
    async with bench(rows=200, shard_size=10, pool={"limit": 4}) as b:
        running = await started(b, 3)
        b.queue.broken = True
        await asyncio.sleep(500)
        assert not running.done()
        assert b.node.obstacle == "the database is out of reach"
        assert (b.hindrance("queue"), b.hindrance("journal")) == (1, 0)
        assert len(b.recorder.outcomes) == len(b.network.sends()) > 50
        failed_calls = [call for at, call in b.queue.calls if at > 100]
        assert len(failed_calls) < 2 * 400 * len(leases_of(b))
        b.queue.broken = False
        await running
        assert b.node.obstacle is None
        b.assert_answered_once()


async def test_a_queue_that_fails_from_the_start_is_waited_for(bench):
    async with bench() as b:
        b.queue.broken = True
        running = await started(b, 60)
        assert not running.done()
        b.queue.broken = False
        await running
        b.assert_answered_once()


async def test_a_queue_that_fails_when_asked_for_its_depth_ends_nothing(bench):
    async with bench(rows=0) as b:
        depth, answers = b.queue.depth, [True, True, True]

        async def failing():
            b.queue.broken = bool(answers) and answers.pop()
            return await depth()

        b.queue.depth = failing
        await b.run()
        assert not answers


async def test_the_books_go_on_while_a_shard_cannot_be_settled(bench):
    async with bench(rows=400, shard_size=5) as b:
        running = await started(b, 0.5)
        await asyncio.sleep(2)
        b.queue.broken = True
        await asyncio.sleep(60)
        assert b.desk.unrecorded == 0
        b.queue.broken = False
        await running
        b.assert_answered_once()


async def test_leases_are_renewed_three_times_in_their_time(bench):
    async with bench(rows=4, lease_s=30.0) as b:
        for name in "ab":
            b.server(name).takes_s = 95
        await b.run()
        renewals = [round(at) for at, call in b.queue.calls if call == "renew"]
        assert renewals == [10, 20, 30, 40, 50, 60, 70, 80, 90]
        b.assert_answered_once()


async def test_a_renewal_that_failed_is_tried_again_soon(bench):
    async with bench(rows=4, lease_s=30.0) as b:
        for name in "ab":
            b.server(name).takes_s = 55
        running = await started(b, 5)
        b.queue.broken = True
        await asyncio.sleep(20)
        b.queue.broken = False
        await running
        renewals = [round(at) for at, call in b.queue.calls if call == "renew"]
        assert renewals == [10, 12, 14, 16, 18, 20, 22, 24, 26, 36, 46]
        b.assert_answered_once()


async def test_a_lost_lease_is_dropped_with_its_requests_and_harms_no_server(bench):
    async with bench(rows=20, lease_s=30.0) as b:
        for name in "ab":
            b.server(name).takes_s = 15
        running = await started(b, 5)
        lost, *_ = leases_of(b)
        b.queue.stolen.add(lost)
        await asyncio.sleep(6)
        assert lost not in leases_of(b)
        b.node.stop()
        await running
        assert not set(b.recorder.outcomes) & set(range(lost.shard.first_index, lost.shard.first_index + 4))
        assert [server.state for server in b.pool.servers.values()] == [State.ACTIVE] * 2
        assert b.registry.get_sample_value("dispatcher_leases_lost_total") == 1


async def test_a_lease_that_is_lost_at_the_settling_is_let_go(bench):
    async with bench(rows=4) as b:
        running = await started(b, 0.5)
        b.queue.stolen.update(leases_of(b))
        await asyncio.sleep(3)
        assert leases_of(b) == []
        assert b.registry.get_sample_value("dispatcher_leases_lost_total") == 1
        b.node.stop()
        await running


async def test_a_lease_that_ends_before_its_journal_is_kept_is_let_go(bench):
    async with bench(rows=8) as b:
        close, refused = b.recorder.close, []

        async def over(lease):
            await close(lease)
            if not refused:
                refused.append(lease)
                b.queue.stolen.add(lease)
                raise LeaseLostError("over by this node's clock")

        b.recorder.close = over
        running = await started(b, 5)
        assert b.registry.get_sample_value("dispatcher_leases_lost_total") == 1
        assert (await b.queue.depth()).shards_settled == 1
        assert leases_of(b) == []
        b.node.stop()
        await running


async def test_a_lease_that_is_lost_while_it_is_opened_is_not_taken_in_hand(bench):
    async with bench(rows=8, lease_s=3.0) as b:
        read, opened = b.payloads.read, []

        async def slow(lease):
            opened.append(lease)
            await asyncio.sleep(5)
            return await read(lease)

        b.payloads.read = slow
        running = await started(b, 0.5)
        b.queue.stolen.update(opened)
        await asyncio.sleep(9)
        assert len(opened) > 1
        assert b.desk.shards.get(opened[0]) is None
        b.node.stop()
        await running
        assert not {index for _, index in b.network.sends()} & {0, 1, 2, 3}


async def test_a_machine_that_slept_takes_its_own_shards_anew_and_answers_every_row(bench):
    async with bench(rows=20, lease_s=30.0, pool={"limit": 2}) as b:
        b.server("a").takes_s = b.server("b").takes_s = 10
        running = await started(b, 5)
        for shards in b.queue._jobs.values():
            for entry in shards.entries.values():
                entry.expires_at = 5.0
            shards.expiry_at = 5.0
        await running
        b.assert_answered_once()
        assert (b.desk.unrecorded, len(b.desk.backlog)) == (0, 0)
        assert (await b.queue.depth()).drained


async def test_a_shard_whose_requests_are_gone_is_let_go_and_the_rest_goes_on(bench):
    async with bench(rows=8) as b:
        read = b.payloads.read

        async def forgetful(lease):
            if lease.shard.number == 0:
                b.queue.stolen.add(lease)
                raise LeaseLostError("answered already")
            return await read(lease)

        b.payloads.read = forgetful
        running = await started(b, 10)
        assert sorted(b.outcomes()) == [4, 5, 6, 7]
        assert not running.done()
        b.node.stop()
        await running


# The recorder


async def test_nothing_is_sent_while_outcomes_cannot_be_recorded(bench):
    async with bench(rows=200, shard_size=50) as b:
        running = await started(b, 3)
        b.recorder.obstacle = "no space left on device"
        await asyncio.sleep(2)
        sends = len(b.network.sends())
        await asyncio.sleep(100)
        assert len(b.network.sends()) == sends
        assert b.node.held_up == "no space left on device"
        assert (b.hindrance("queue"), b.hindrance("journal")) == (0, 1)
        b.recorder.obstacle = None
        assert b.node.held_up is None
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(TICK_S + 0.01)
        assert b.network.sends()[-1][0] <= began + TICK_S
        assert b.hindrance("journal") == 0
        await running
        b.assert_answered_once()


async def test_an_obstacle_at_the_end_is_left_to_the_recorder(bench):
    async with bench(rows=20) as b:
        running = await started(b, 1.1)
        b.recorder.obstacle = "no space left on device"
        b.node.stop()
        began = asyncio.get_running_loop().time()
        await running
        assert asyncio.get_running_loop().time() - began < 0.1


# Models


async def test_rows_wait_for_the_server_that_has_their_model_while_others_go_on(bench):
    async with bench(rows=20) as b:
        b.server("a").models = b.server("b").models = {"m": "m"}
        b.payloads.model_of = lambda index: "m" if index % 2 else "other"
        running = await started(b, 60)
        assert sorted(b.outcomes()) == list(range(1, 20, 2))
        assert b.node.waiting.models == ("other",)
        b.server("c").models = {"other": "other"}
        b.watch("a", "b", "c")
        await running
        b.assert_answered_once()


# Poison


async def test_a_row_that_kills_servers_is_convicted_at_the_second_and_costs_no_other_row(bench):
    async with bench(rows=60, servers=("a", "b", "c", "d")) as b:
        for name in "abcd":
            b.server(name).deadly = frozenset({30})
        await b.run()
        codes = {index: outcome.code for index, outcome in b.outcomes().items()}
        assert codes == {index: ErrorCode.POISON if index == 30 else None for index in range(60)}
        assert [index for _, index in b.network.sends()].count(30) == 2
        assert {len(found) for found in b.recorder.outcomes.values()} == {1}


async def test_a_death_is_remembered_for_a_later_run_and_one_more_convicts_there(bench):
    async with bench(rows=8, servers=("a",)) as b:
        b.server("a").deadly = frozenset({3})
        running = await started(b, 1.5)
        assert b.recorder.grudges[3].deaths == 1
        b.node.stop()
        await running
        grudges, known = b.recorder.grudges, b.recorder.outcomes.keys()
    async with bench(rows=8, servers=("a", "b")) as later:
        later.recorder.grudges, later.recorder.finished_before = grudges, frozenset(known)
        later.server("a").deadly = later.server("b").deadly = frozenset({3})
        await later.run()
        assert later.outcomes()[3].code is ErrorCode.POISON
        assert [index for _, index in later.network.sends()].count(3) == 1


def damaged(bench, number):
    """The recorder cannot open this shard until the result's `clear`."""
    spoiled, opening = {number}, bench.recorder.open

    async def open_(lease, requests):
        if lease.shard.number in spoiled:
            raise StorageError("cannot read 000001.journal")
        return await opening(lease, requests)

    bench.recorder.open = open_
    return spoiled


async def test_a_journal_that_cannot_be_read_hinders_its_shard_and_nothing_else(bench):
    async with bench() as b:
        b.node.ledger.follow(JobId("job"), Tally(), 0, {})
        spoiled = damaged(b, 1)
        running = await started(b, 20.0)
        assert sorted(b.outcomes()) == [*range(4), *range(8, 20)]
        assert (
            b.node.ledger.standings([], asyncio.get_running_loop().time())[JobId("job")].hindrance
            == "cannot read 000001.journal"
        )
        spoiled.clear()
        await b.queue.release(
            b.node.name, b.node.ledger.to_be_tried(JobId("job"), asyncio.get_running_loop().time())
        )
        await running
        b.assert_answered_once()
        assert b.node.ledger.standings([], asyncio.get_running_loop().time())[JobId("job")].hindrance is None


async def test_a_job_whose_files_are_all_unreadable_is_not_leased_over_and_over(bench):
    async with bench(rows=4000) as b:
        b.node.ledger.follow(JobId("job"), Tally(), 0, {})
        damaged(b, 1).update(range(1000))
        running = await started(b, 30.0)
        hindered = b.node.ledger.to_be_tried(JobId("job"), asyncio.get_running_loop().time())
        assert HINDERED_MAX <= len(hindered) == len(set(hindered)) < 200
        b.node.stop()
        await running
        await b.queue.release(b.node.name, hindered)


async def test_where_nobody_follows_the_job_a_journal_that_cannot_be_read_ends_the_run(bench):
    async with bench() as b:
        damaged(b, 1)
        with pytest.raises(ExceptionGroup) as failed:
            await b.run()
        assert failed.group_contains(StorageError, match="000001")


async def test_what_a_lost_shard_had_recorded_stays_counted(bench):
    async with bench(rows=4, servers=("a",), pool={"limit": 1}) as b:
        ledger = b.node.ledger
        ledger.follow(JobId("job"), Tally(), 0, {})
        running = await started(b, 2.5)
        before = ledger.standings(b.desk.shards, asyncio.get_running_loop().time())[JobId("job")].tally
        assert before.succeeded > 0
        (lost,) = leases_of(b)
        b.queue.stolen.add(lost)
        b.node._lose([lost])
        assert (
            ledger.standings(b.desk.shards, asyncio.get_running_loop().time())[JobId("job")].tally == before
        )
        b.node.stop()
        await running

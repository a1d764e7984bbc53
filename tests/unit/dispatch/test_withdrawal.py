"""Jobs that are paused, cancelled, limited or put before others, at one node."""

import asyncio

from dispatcher.model import Answer, Job, JobId, Shard

OTHER = JobId("other")


def add_job(bench, job_id, first, count, **settings):
    """Another job, whose rows have indexes from `first` on, so that they can be told apart."""
    bench.queue.add(Job(job_id, **settings), Shard(first, first, count, 0, 0))


async def running(bench, seconds):
    task = asyncio.create_task(bench.run(until_drained=False))
    await asyncio.sleep(seconds)
    return task


async def end(bench, task):
    bench.node.stop()
    await task


def sent(bench, since=0.0):
    return [index for at, index in bench.network.sends() if at >= since]


async def test_a_paused_job_sends_nothing_more_and_what_is_open_may_end(bench):
    async with bench(rows=400) as b:
        b.server("a").takes_s = b.server("b").takes_s = 5.0
        task = await running(b, 3.0)
        open_ = b.desk.in_flight
        assert open_
        b.queue.paused = {JobId("job")}
        b.node.withdraw(JobId("job"), at_once=False)
        at = asyncio.get_running_loop().time()
        await asyncio.sleep(10.0)
        assert sent(b, at) == []
        assert len(b.recorder.outcomes) == open_
        assert all(outcome.ok for outcome in b.outcomes().values())
        await end(b, task)


async def test_its_shards_go_back_with_what_they_have_and_another_may_finish_them(bench):
    async with bench(rows=40, shard_size=10) as b:
        b.server("a").takes_s = b.server("b").takes_s = 2.0
        task = await running(b, 0.5)
        b.queue.paused = {JobId("job")}
        b.node.withdraw(JobId("job"), at_once=False)
        await asyncio.sleep(10.0)
        assert not b.node.holds(JobId("job"))
        assert (await b.queue.depth()).shards_leased == 0
        b.queue.paused = set()
        b.node.welcome(JobId("job"))
        await asyncio.sleep(30.0)
        b.assert_answered_once()
        assert len(b.network.sends()) == 40
        await end(b, task)


async def test_a_cancelled_job_is_out_of_hand_at_once(bench):
    async with bench(rows=400) as b:
        b.server("a").takes_s = b.server("b").takes_s = 1000.0
        task = await running(b, 3.0)
        b.queue.paused = {JobId("job")}
        b.node.withdraw(JobId("job"), at_once=True)
        await asyncio.sleep(1.0)
        assert not b.node.holds(JobId("job"))
        assert b.desk.in_flight == 0
        assert sum(b.server(name).open for name in "ab") == 0
        assert b.recorder.outcomes == {}
        await end(b, task)


async def test_a_shard_that_comes_in_hand_after_the_stop_does_not_hold_the_others(bench):
    async with bench(rows=40, shard_size=10, pool={"limit": 4}) as b:
        b.server("a").takes_s = b.server("b").takes_s = 5.0
        read = b.payloads.read

        async def read_slowly(lease):
            await asyncio.sleep(1.0)
            return await read(lease)

        b.payloads.read = read_slowly
        task = await running(b, 1.5)
        assert b.desk.in_flight == 8, "the first shard is at the servers, the second on its way in"
        b.queue.paused = {JobId("job")}
        b.node.withdraw(JobId("job"), at_once=False)
        await asyncio.sleep(10.0)
        assert not b.node.holds(JobId("job"))
        assert len(b.recorder.outcomes) == 8
        assert (await b.queue.depth()).shards_leased == 0
        await end(b, task)


async def test_a_job_that_is_stopped_harms_no_server_and_no_other_job(bench):
    async with bench(rows=200) as b:
        add_job(b, OTHER, 1000, 50)
        b.server("a").takes_s = b.server("b").takes_s = 2.0
        task = await running(b, 1.0)
        b.queue.paused = {JobId("job")}
        b.node.withdraw(JobId("job"), at_once=True)
        await asyncio.sleep(30.0)
        assert {index for index in b.recorder.outcomes if index >= 1000} == set(range(1000, 1050))
        assert all(server.record.failed == 0 for server in b.pool.servers.values())
        await end(b, task)


async def test_a_job_that_is_stopped_while_health_is_asked_stops_no_other_job(bench):
    async with bench(rows=4, servers=("a",)) as b:
        b.server("a").ending = Answer(503, b"")
        probe = b.network.probe

        async def slow(server):
            await asyncio.sleep(1000.0)
            return await probe(server)

        task = await running(b, 0.5)
        b.monitor._prober.probe = slow
        await asyncio.sleep(1.2)
        assert b.node._sending.of_job(JobId("job")), "a row's 503 waits for what /health says"
        b.queue.paused = {JobId("job")}
        b.node.withdraw(JobId("job"), at_once=True)
        await asyncio.sleep(1.0)
        assert not b.node.holds(JobId("job"))
        b.monitor._prober.probe, b.server("a").ending = probe, Answer(200, b"{}")
        add_job(b, OTHER, 1000, 50)
        await asyncio.sleep(60.0)
        assert {index for index in b.recorder.outcomes if index >= 1000} == set(range(1000, 1050))
        await end(b, task)


async def test_a_row_whose_outcome_is_there_when_its_job_is_stopped_keeps_it(bench):
    async with bench(rows=4, shard_size=4) as b:
        b.recorder.takes_s = 3.0
        b.server("a").takes_s = b.server("b").takes_s = 0.5
        task = await running(b, 1.0)
        b.node.withdraw(JobId("job"), at_once=True)
        await asyncio.sleep(10.0)
        b.assert_answered_once()
        assert (await b.queue.depth()).shards_settled == 1
        await end(b, task)


async def test_a_limited_job_has_no_more_in_flight_and_leaves_the_rest_to_others(bench):
    async with bench(rows=300, job={"limit": 3}, shard_size=100) as b:
        add_job(b, OTHER, 1000, 200)
        most = 0
        task = await running(b, 0.1)
        while len(b.recorder.outcomes) < 500:
            await asyncio.sleep(0.05)
            ours = [attempt for attempt in b.desk.open_attempts() if attempt.item.lease.job.id == "job"]
            most = max(most, len(ours))
        assert most == 3
        last_of_other = max(at for at, index in b.network.sends() if index >= 1000)
        assert last_of_other < 20.0, "it did not wait behind the limited one"
        await end(b, task)


async def test_of_what_is_in_hand_the_higher_priority_goes_first(bench):
    async with bench(rows=60, shard_size=60, pool={"limit": 2}) as b:
        task = await running(b, 0.1)
        add_job(b, OTHER, 1000, 10, priority=5)
        await asyncio.sleep(15.0)
        came_at = min(at for at, index in b.network.sends() if index >= 1000)
        sent_by = {index: at for at, index in b.network.sends()}
        rest = [at for index, at in sent_by.items() if index < 1000 and at >= came_at]
        assert max(sent_by[index] for index in range(1000, 1010)) <= min(rest)
        await end(b, task)

"""Two services at once on one PostgreSQL and one store: their jobs are common, and each may go away."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from jobs import rows, sends
from services import serving

from dispatcher.queue.postgresql import connect
from dispatcher.testing.engine import EngineSettings

pytestmark = pytest.mark.services
SLOW = EngineSettings(max_sequences=4, decode_step_s=0.02)
LEASE_S = 3.0


@pytest.fixture
def pair(url, tmp_path):
    """Two services, or as many as have names, on the same queue and store."""

    def settings(name):
        return {
            "queue": {"url": url.secret, "shard_size": 8, "lease_s": LEASE_S},
            "storage": {"url": f"file://{tmp_path}/store", "directory": str(tmp_path / name)},
            "results": {"sync_s": 0.02, "checkpoint_s": 1},
            "pool": {"limit": 4},
        }

    @asynccontextmanager
    async def open_pair(server, *names):
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(serving(None, server, **settings(name)))
                for name in names or ("a", "b")
            ]

    return open_pair


async def by_node(stages):
    """Requests that each node has in flight."""
    return [len([*stage.service._node.desk.open_attempts()]) for stage in stages]


async def until(condition, timeout_s=20.0):
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110  # it is polled
            await asyncio.sleep(0.05)


async def test_both_work_on_a_job_that_one_was_given(pair, serve):
    server = await serve(answer_tokens=2, engine=SLOW)
    async with pair(server) as stages:
        one, other = stages
        batch = await one.submit(rows(1000))
        assert (await other.sdk.batches.retrieve(batch.id)).id == batch.id  # at once, news or no news

        async def both_send():
            return all(await by_node(stages))

        await until(both_send)
        ended = await other.until_ended(batch)
        assert (ended.status, ended.request_counts.completed) == ("completed", 1000)
        assert set((await one.outcomes(ended)).values()) == {None}
        assert len(await other.outcomes(ended)) == 1000
        assert {job.id for job in (await one.sdk.batches.list()).data} == {batch.id}
    assert max(Counter(sends(server)).values()) == 1


@pytest.mark.parametrize("teller", [0, 1])
async def test_what_either_is_told_both_do(pair, serve, teller):
    server = await serve(answer_tokens=2, engine=SLOW)
    async with pair(server) as stages:
        batch = await stages[0].submit(rows(2000))
        told, asked = stages[teller], stages[1 - teller]

        async def both_send():
            return all(await by_node(stages))

        async def none_sends():
            return not any(await by_node(stages))

        await until(both_send)
        assert (await told.ask("POST", f"/jobs/{batch.id}/pause"))[0] == 200
        await until(none_sends, 5)
        assert (await asked.ask("GET", f"/jobs/{batch.id}"))[1]["paused"] is True
        assert (await asked.ask("POST", f"/jobs/{batch.id}/resume"))[0] == 200
        await until(both_send)
        await told.sdk.batches.cancel(batch.id)
        await until(none_sends, 5)
        ended = await asked.until_ended(batch)
        counts = ended.request_counts
        assert (ended.status, counts.completed + counts.failed) == ("cancelled", 2000)
        assert len(await told.outcomes(ended)) == 2000


async def test_an_orderly_end_hands_over_within_a_second_and_nothing_is_done_again(pair, serve):
    server = await serve(answer_tokens=2, engine=SLOW)
    async with pair(server, "b") as (other,):
        async with pair(server, "a") as (one,):
            batch = await one.submit(rows(200))
            await one.until(batch, lambda found: found.request_counts.completed > 20)
            one.service.request_stop()
            await asyncio.wait_for(one.ended, 10)
        loop, stopped_at = asyncio.get_running_loop(), asyncio.get_running_loop().time()

        async def other_sends():
            return bool((await by_node([other]))[0])

        await until(other_sends, 5)
        assert loop.time() - stopped_at < 1
        ended = await other.until_ended(batch)
        assert ended.request_counts.completed == 200
        assert len(await other.outcomes(ended)) == 200
    assert max(Counter(sends(server)).values()) == 1


async def test_failed_rows_are_sent_again_by_whichever_is_told(pair, serve):
    from dispatcher.testing import Match, Respond

    bad = '{"error": {"message": "no", "type": "BadRequestError", "param": "messages", "code": 400}}'
    server = await serve(answer_tokens=2)
    async with pair(server) as (one, other):
        refusing = server.inject(Respond(400, bad), Match(text="row-0000"))
        batch = await one.submit(rows(50))
        first = await one.until_ended(batch)
        assert first.request_counts.failed == 10
        server.withdraw(refusing)
        await other.until_ended(batch)
        assert (await other.ask("POST", f"/jobs/{batch.id}/retry"))[0] == 200
        ended = await other.until_ended(batch)
        assert (ended.status, ended.request_counts.completed, ended.error_file_id) == ("completed", 50, None)
        assert set((await one.outcomes(await one.until_ended(batch))).values()) == {None}


async def test_a_job_is_retried_at_any_node_the_moment_it_ends(pair, serve):
    """Whoever drove it gives it up just then: it must not be without a node after."""
    from dispatcher.testing import Match, Respond

    bad = '{"error": {"message": "no", "type": "BadRequestError", "param": "messages", "code": 400}}'
    server = await serve(answer_tokens=2)
    server.inject(Respond(400, bad), Match(text="row-0000"))
    async with pair(server) as stages:
        batch = await stages[0].submit(rows(20))
        for told in [*stages] * 3:

            async def is_retried(told=told):
                return (await told.ask("POST", f"/jobs/{batch.id}/retry"))[0] == 200

            await until(is_retried, 10)
        ended = await stages[0].until_ended(batch, 10)
        assert (ended.status, len(await stages[1].outcomes(ended))) == ("completed", 20)


async def stolen(database, job):
    """Whether another node, one that is frozen since, took the job while it was being read."""
    async with database.transaction():
        await database.execute("SELECT 1 FROM custody WHERE job_id = $1 FOR UPDATE", job)
        if await database.fetchval("SELECT status FROM jobs WHERE id = $1", job) != "preparing":
            return False
        late = "UPDATE custody SET node = 'frozen', epoch = epoch + 1, expires_at = 0 WHERE job_id = $1"
        await database.execute(late, job)
        return True


async def test_a_job_that_is_taken_over_while_it_is_read_has_every_row_once(pair, serve, url):
    server = await serve(answer_tokens=2)
    database = await connect(url)
    async with pair(server) as (one, other):
        for _ in range(10):
            batch = await one.submit(rows(400))
            if await stolen(database, batch.id):
                break
        else:
            pytest.fail("each job was read before it could be taken over")
        ended = await other.until_ended(batch)
        assert (ended.status, ended.request_counts.completed) == ("completed", 400)
        assert len(await one.outcomes(ended)) == 400
    await database.close()


async def test_both_list_the_same_jobs_of_the_same_age_and_none_that_either_deleted(pair, serve):
    server = await serve(answer_tokens=2)
    async with pair(server) as stages:
        made = [await stages[number % 2].submit(rows(1)) for number in range(6)]
        for stage in stages:
            for batch in made:
                await stage.until_ended(batch)
        listed = [
            [(job.id, job.created_at) for job in (await stage.sdk.batches.list()).data] for stage in stages
        ]
        assert listed[0] == listed[1]
        assert [name for name, _ in listed[0]] == [batch.id for batch in reversed(made)]
        assert (await stages[0].ask("DELETE", f"/jobs/{made[0].id}"))[0] == 200

        async def is_gone():
            return (await stages[1].ask("GET", f"/jobs/{made[0].id}"))[0] == 404

        await until(is_gone, 5)


async def test_a_database_that_goes_away_holds_up_no_stop_and_loses_nothing(pair, serve, postgres):
    server = await serve(answer_tokens=2, engine=SLOW)
    loop = asyncio.get_running_loop()
    async with pair(server) as (one, other):
        batch = await one.submit(rows(600))

        async def both_send():
            return all(await by_node([one, other]))

        async def other_sends():
            return bool((await by_node([other]))[0])

        await until(both_send)
        await asyncio.to_thread(postgres.stop)
        try:
            began = loop.time()
            assert (await other.ask("POST", f"/jobs/{batch.id}/pause"))[0] == 503
            assert (await other.ask("GET", f"/jobs/{batch.id}"))[0] == 200
            one.service.request_stop()
            await asyncio.wait_for(one.ended, 10)
            assert loop.time() - began < 10
        finally:
            await asyncio.to_thread(postgres.start)
        await until(other_sends)
        ended = await other.until_ended(batch, 60)
        assert (ended.status, ended.request_counts.completed) == ("completed", 600)
        assert len(await other.outcomes(ended)) == 600

"""Two nodes at the custody of one job, each in its own transaction."""

import asyncio

import pytest

from dispatcher.errors import JobMovedError
from dispatcher.model import Job, JobId
from dispatcher.queue.postgresql import connect
from dispatcher.queue.records import JobStatus

pytestmark = pytest.mark.services
A = JobId("a")
ENDED, GOES_ON = {"stage": "completed"}, {"stage": "reopening"}
WAITS = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


async def until_one_waits(database):
    async with asyncio.timeout(10):
        while not await database.fetchval(WAITS):  # noqa: ASYNC110  # it is polled
            await asyncio.sleep(0.01)


async def test_a_job_that_goes_on_just_as_it_is_retired_is_wanted(sql, url, node, other):
    await sql.queue.create_job(Job(A), ENDED)
    await sql.queue.custody.take(node, A)
    database = await connect(url)
    async with database.transaction():
        await database.execute("SELECT 1 FROM custody WHERE job_id = 'a' FOR UPDATE")
        move = sql.queue.keeping.move(A, JobStatus.PREPARING, GOES_ON, before=ENDED, wanted=True)
        moving = asyncio.create_task(move)
        await until_one_waits(database)
        await database.execute("UPDATE custody SET wanted = false, expires_at = NULL WHERE job_id = 'a'")
    await database.close()
    await moving
    assert [each.node for each in await sql.queue.custody.take_free(other, 9)] == [other]


async def test_a_job_that_is_retired_deleted_and_retried_at_once_is_gone_or_goes_on(sql, node, other):
    for number in range(20):
        job = JobId(f"job {number}")
        await sql.queue.create_job(Job(job), ENDED)
        held = await sql.queue.custody.take(node, job)
        keeping = sql.queue.keeping
        done = await asyncio.gather(
            sql.queue.custody.retire(held, ENDED),
            keeping.move(job, JobStatus.PREPARING, GOES_ON, before=ENDED, wanted=True),
            keeping.discard(job, ENDED),
            return_exceptions=True,
        )
        record = await sql.queue.job(job)
        if record is None:
            assert done[2] is None
        else:
            assert (record.details, type(done[2])) == (GOES_ON, JobMovedError)
            await sql.queue.custody.take_free(other, 99)
            assert job in await sql.queue.custody.holders()

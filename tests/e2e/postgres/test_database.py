"""What a real PostgreSQL does to the queue: outages, refusals, lost answers, and other nodes."""

import asyncio
import traceback
from contextlib import asynccontextmanager
from itertools import chain

import asyncpg
import pytest
from database_wire import Cut, open_wire
from postgres_server import LOCKED
from structlog.testing import capture_logs

from dispatcher.app.clock import SystemClock
from dispatcher.config.queue import queue_url
from dispatcher.errors import QueueError, QueueUnreachableError, StateError
from dispatcher.model import Job, JobId, NodeId, Tally
from dispatcher.queue import listening, postgresql
from dispatcher.queue.keeping import FileRecord, FilesWanted
from dispatcher.queue.migrations import HEAD
from dispatcher.queue.records import JobStatus
from dispatcher.queue.shared import open_shared_queue
from dispatcher.queue.transactions import WORK, News, Topic

pytestmark = pytest.mark.services
A = JobId("a")
PASSWORD = "s3cret-p4ss"  # noqa: S105  # it opens nothing


@asynccontextmanager
async def opened(url, lease_s=60.0):
    async with open_shared_queue(url, SystemClock(), lease_s=lease_s) as queue:
        yield queue


async def filled(queue, shards, count=8):
    await queue.create_job(Job(A), {})
    await queue.add_shards(A, shards([4] * count))
    await queue.activate(A)


def through(url, wire):
    return queue_url(url.secret.replace(f":{url.secret.rsplit(':', 1)[1].split('/')[0]}/", f":{wire.port}/"))


def numbers(leases):
    return [lease.shard.number for lease in leases]


@pytest.fixture
async def queue(url):
    async with opened(url) as queue:
        yield queue


@pytest.fixture
async def wire(postgres):
    async with open_wire(postgres.port) as wire:
        yield wire


# Outages


async def test_a_restart_of_the_database_is_an_error_while_it_lasts_and_is_told_once(
    postgres, queue, shards, node
):
    await filled(queue, shards)
    leases = await queue.lease(node, 8)
    with capture_logs() as logs:
        await asyncio.to_thread(postgres.stop)
        try:
            for _ in range(3):
                with pytest.raises(QueueUnreachableError):
                    await queue.renew(node, leases)
        finally:
            await asyncio.to_thread(postgres.start)
        assert await queue.renew(node, leases) == []
        await queue.settle(node, leases[0], Tally(4))
    told = [entry["event"] for entry in logs if entry["log_level"] != "debug"]
    assert told == ["queue_unreachable", "queue_reachable"]
    assert (await queue.depth()).shards_settled == 1


async def test_a_crash_of_the_database_between_two_statements_is_not_noticed(postgres, queue, shards, node):
    await filled(queue, shards)
    await asyncio.to_thread(postgres.kill)
    await asyncio.to_thread(postgres.start)
    assert numbers(await queue.lease(node, 4)) == [0]


async def test_work_is_announced_again_after_the_listening_connection_broke(
    postgres, url, queue, monkeypatch
):
    monkeypatch.setattr(listening, "PAUSE_S", 0.05)
    heard = []
    queue.listeners.append(heard.append)
    async with opened(url) as another:
        await another.create_job(Job(A), {})
        await until(lambda: News(Topic.JOB, A) in heard)
        heard.clear()
        database = url.secret.rsplit("/", 1)[1]
        others = f"pg_stat_activity WHERE datname = '{database}'"
        ended = f"SELECT count(pg_terminate_backend(pid)) FROM {others}"  # noqa: S608  # a name of ours
        await asyncio.to_thread(postgres.sql, ended)
        await until(lambda: None in heard)  # something may have been missed
        heard.clear()
        await another.activate(A)
        await until(lambda: News(Topic.JOB, A) in heard)


async def test_a_connection_that_stood_idle_for_long_is_tried_before_it_is_used(
    postgres, url, shards, node, monkeypatch
):
    monkeypatch.setattr(postgresql, "IDLE_S", -1.0)
    async with opened(url) as queue:
        await filled(queue, shards)
        assert numbers(await queue.lease(node, 4)) == [0]


async def test_a_statement_without_an_answer_ends_in_time_and_its_connection_with_it(
    url, shards, node, monkeypatch
):
    monkeypatch.setattr(postgresql, "STATEMENT_S", 0.3)
    blocker = await asyncpg.connect(url.secret)
    async with opened(url) as queue:
        await filled(queue, shards)
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute("LOCK TABLE shards IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(QueueUnreachableError):
            await queue.lease(node, 4)
        await transaction.rollback()
        assert numbers(await queue.lease(node, 4)) == [0]
    await blocker.close()


async def test_a_process_that_is_frozen_in_a_transaction_does_not_hold_up_the_others(
    url, queue, shards, node, monkeypatch
):
    await filled(queue, shards)
    [lease] = await queue.lease(node, 4)
    monkeypatch.setitem(postgresql.SERVER_SETTINGS, "idle_in_transaction_session_timeout", "300ms")
    async with opened(url) as frozen:
        with pytest.raises(QueueUnreachableError, match="the connection broke"):  # noqa: PT012  # one transaction
            async with frozen._database.write() as connection:
                await connection.exec_driver_sql("UPDATE jobs SET rows = rows WHERE id = 'a'")
                await queue.settle(node, lease, Tally(4))  # needs the same row
                await connection.exec_driver_sql("SELECT 1")
    assert (await queue.depth()).shards_settled == 1


# Answers that were lost


async def test_shards_whose_lease_was_not_answered_are_given_when_the_node_asks_again(
    url, wire, shards, node, other
):
    async with opened(through(url, wire)) as queue, opened(url) as another:
        await filled(queue, shards)
        wire.cut = Cut.ANSWER
        with pytest.raises(QueueUnreachableError):
            await queue.lease(node, 8)
        assert (await another.depth()).shards_leased == 2
        leases = await queue.lease(node, 4)
        assert [(lease.shard.number, lease.epoch) for lease in leases] == [(0, 1), (1, 1)]
        assert numbers(await queue.lease(node, 4)) == [2]
        assert numbers(await another.lease(other, 4)) == [3]


async def test_shards_whose_lease_was_never_done_are_leased_when_the_node_asks_again(url, wire, shards, node):
    async with opened(through(url, wire)) as queue:
        await filled(queue, shards)
        wire.cut = Cut.REQUEST
        with pytest.raises(QueueUnreachableError):
            await queue.lease(node, 8)
        assert [(lease.shard.number, lease.epoch) for lease in await queue.lease(node, 8)] == [(0, 1), (1, 1)]


async def test_shards_that_another_node_has_taken_over_meanwhile_are_not_given(
    url, wire, shards, node, other
):
    async with opened(through(url, wire), lease_s=0.2) as queue, opened(url) as another:
        await filled(queue, shards)
        wire.cut = Cut.ANSWER
        with pytest.raises(QueueUnreachableError):
            await queue.lease(node, 8)
        await asyncio.sleep(0.3)
        assert numbers(await another.lease(other, 4)) == [0]
        assert numbers(await queue.lease(node, 4)) == [1]


async def test_a_settlement_that_was_not_answered_is_repeated_and_counted_once(url, wire, shards, node):
    async with opened(through(url, wire)) as queue:
        await filled(queue, shards)
        [lease] = await queue.lease(node, 4)
        wire.cut = Cut.ANSWER
        with pytest.raises(QueueUnreachableError):
            await queue.settle(node, lease, Tally(4))
        await queue.settle(node, lease, Tally(4))
        depth = await queue.depth()
        assert (depth.shards_settled, depth.requests_settled) == (1, 4)


def once(queue, shards):
    """Whatever must not be done twice: a call, and how to see that it was done."""
    record = FileRecord("f", "ann", "f", "batch", 1, 1.0)

    async def has_job():
        return await queue.job(JobId("b")) is not None

    async def has_shards():
        return (await queue.job(A)).shards == 3

    async def has_file():
        return await queue.keeping.file("f") is not None

    async def has_ended():
        return (await queue.job(A)).status is JobStatus.FINISHED

    return {
        "create": (lambda: queue.create_job(Job(JobId("b")), {}), has_job),
        "shards": (lambda: queue.add_shards(A, shards([1, 1, 1])), has_shards),
        "file": (lambda: queue.keeping.add_file(record), has_file),
        "end": (lambda: queue.keeping.conclude(A, JobStatus.FINISHED, {}, made=[record]), has_ended),
    }


@pytest.mark.parametrize("name", ["create", "shards", "file", "end"])
async def test_what_must_not_be_done_twice_is_known_to_be_done_though_its_answer_was_lost(
    url, wire, shards, name
):
    async with opened(through(url, wire)) as queue:
        await queue.create_job(Job(A), {})
        act, is_done = once(queue, shards)[name]
        wire.cut = Cut.ANSWER
        await act()
        assert await is_done()


@pytest.mark.parametrize("name", ["create", "shards", "file", "end"])
async def test_what_must_not_be_done_twice_is_known_not_to_be_done_where_it_never_arrived(
    url, wire, shards, name
):
    async with opened(through(url, wire)) as queue:
        await queue.create_job(Job(A), {})
        act, is_done = once(queue, shards)[name]
        wire.cut = Cut.REQUEST
        with pytest.raises(QueueUnreachableError):
            await act()
        assert not await is_done()
        await act()
        assert await is_done()


async def test_where_the_database_stays_away_it_is_said_that_nobody_knows(url, wire, monkeypatch):
    monkeypatch.setattr(postgresql, "FATE_S", 0.2)
    monkeypatch.setattr(postgresql, "FATE_PAUSE_S", 0.05)
    async with opened(through(url, wire)) as queue:
        await queue.create_job(Job(A), {})
        wire.cut, wire.down = Cut.ANSWER, True
        with pytest.raises(QueueUnreachableError, match="It is not known what was done"):
            await queue.create_job(Job(JobId("b")), {})


async def test_a_transaction_that_a_promoted_standby_never_had_was_not_done(queue):
    assert not await queue._database._was_committed("999999999999")


# Other nodes


async def test_nodes_that_lease_at_once_never_get_the_same_shard(url, shards):
    async with opened(url) as first, opened(url) as second:
        await filled(first, shards, 200)

        async def work(queue, name):
            taken = []
            while leases := await queue.lease(NodeId(name), 8):
                taken += numbers(leases)
            return taken

        nodes = [(queue, f"node-{n}") for n, queue in enumerate([first, second] * 4)]
        taken = list(chain.from_iterable(await asyncio.gather(*(work(*each) for each in nodes))))
        assert sorted(taken) == list(range(200))


async def test_nodes_that_settle_and_take_over_at_once_settle_every_shard_once(url, shards):
    async with opened(url, lease_s=0.05) as first, opened(url, lease_s=0.05) as second:
        await filled(first, shards, 60)
        settled = []

        async def work(queue, name):
            while not (await queue.depth()).drained:
                for lease in await queue.lease(NodeId(name), 8):
                    await asyncio.sleep(0.04)  # the second one of a lease's shards is late
                    try:
                        await queue.settle(NodeId(name), lease, Tally(4))
                    except QueueError:
                        continue
                    settled.append(lease.shard.number)

        nodes = [(queue, f"node-{n}") for n, queue in enumerate([first, second] * 2)]
        await asyncio.gather(*(work(*each) for each in nodes))
        assert sorted(settled) == list(range(60))
        assert (await first.job(A)).shards_settled == 60


async def test_two_nodes_that_take_free_jobs_at_once_never_take_the_same(url):
    async with opened(url) as first, opened(url) as second:
        for number in range(20):
            await first.create_job(Job(JobId(f"job-{number}")), {})
        taken = await asyncio.gather(
            *(queue.custody.take_free(NodeId(str(n)), 8) for n, queue in enumerate([first, second] * 2))
        )
        job_ids = [each.job_id for each in chain.from_iterable(taken)]
        assert len(job_ids) == len(set(job_ids))


async def test_a_node_is_woken_by_what_another_process_does(url, shards, node):
    async with opened(url) as queue, opened(url) as another:
        await filled(another, shards, 1)
        leases = await another.lease(node, 4)
        await asyncio.sleep(0.2)
        await queue.wait(3600)  # takes the rings of all that
        waiter = asyncio.create_task(queue.wait(3600))
        await asyncio.sleep(0.05)
        assert not waiter.done()
        await another.release(node, leases)
        await asyncio.wait_for(waiter, 5)


async def test_a_thousand_shards_are_announced_once(url, queue, shards):
    heard = []
    await queue.create_job(Job(A), {})
    await asyncio.sleep(0.2)
    queue.listeners.append(heard.append)
    await queue.add_shards(A, shards([1] * 1000))
    await until(lambda: heard)
    await asyncio.sleep(0.1)
    assert heard == [WORK]


async def test_leases_last_by_the_databases_clock(url, shards, node, other):
    async with opened(url, lease_s=0.3) as queue:
        await filled(queue, shards)
        assert numbers(await queue.lease(node, 4)) == [0]
        assert numbers(await queue.lease(other, 4)) == [1]
        await asyncio.sleep(0.35)
        assert numbers(await queue.lease(other, 8)) == [0, 1]


# Refusals


async def refused(url):
    """What is said where the queue cannot be opened, and all that a log could show of it."""
    with pytest.raises((QueueError, StateError)) as caught, capture_logs() as logs:
        async with opened(url):
            pass
    shown = "".join(traceback.format_exception(caught.value))
    assert PASSWORD not in shown + str(logs) + repr(url) + repr(caught.value)
    return str(caught.value)


async def test_a_database_that_is_not_reached_is_named_without_its_password(wire):
    wire.down = True
    url = queue_url(f"postgresql://{LOCKED}:{PASSWORD}@127.0.0.1:1/queue")
    said = await refused(url)
    assert "postgresql://locked@127.0.0.1:1/queue: it cannot be reached" in said


async def test_a_wrong_password_is_said_to_be_refused_and_not_repeated(postgres):
    postgres.role(LOCKED, "PASSWORD 'right'")
    said = await refused(queue_url(f"postgresql://{LOCKED}:{PASSWORD}@127.0.0.1:{postgres.port}/postgres"))
    assert "it refuses the user or the password" in said


async def test_a_missing_database_is_said_to_be_missing(postgres):
    assert "there is no such database" in await refused(queue_url(postgres.url_of("nowhere")))


async def test_a_database_without_tables_is_to_be_migrated(postgres):
    said = await refused(queue_url(postgres.fresh_database()))
    assert "has no tables of the dispatcher's: run `dispatcher migrate`" in said


@pytest.mark.parametrize(
    ("revision", "oldest", "said"),
    [
        ("0002", HEAD, f"is of revision 0002, and this dispatcher needs {HEAD}: run `dispatcher migrate`"),
        ("0999", "0999", "was migrated by a newer dispatcher"),
    ],
)
async def test_tables_of_another_version_are_refused(postgres, url, revision, oldest, said):
    stamp(postgres, url, revision, oldest)
    assert said in await refused(url)


async def test_newer_tables_that_this_version_still_knows_are_worked_with(postgres, url, shards, node):
    stamp(postgres, url, "0999", HEAD)
    with capture_logs() as logs:
        async with opened(url) as queue:
            await filled(queue, shards)
            assert numbers(await queue.lease(node, 4)) == [0]
    assert [entry for entry in logs if entry["event"] == "queue_newer"] == [
        {
            "event": "queue_newer",
            "log_level": "info",
            "revision": "0999",
            "known": HEAD,
            "advice": "upgrade this dispatcher in time",
        }
    ]


async def test_a_user_without_rights_is_told_how_to_get_them(postgres, url):
    postgres.role("stranger")
    said = await refused(queue_url(url.secret.replace("postgres@", "stranger@")))
    assert "its user may not do that" in said
    assert "--grant-to" in said


@pytest.mark.parametrize("option", ["?nonsense=1", "?sslmode=nonsense", "?target_session_attrs=standby"])
async def test_an_option_that_cannot_be_is_an_error_without_the_password(url, option):
    with pytest.raises(Exception) as caught:  # noqa: PT011  # of three kinds
        async with opened(queue_url(url.secret.replace("postgres@", f"postgres:{PASSWORD}@") + option)):
            pass
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


async def test_a_value_that_the_database_cannot_hold_is_a_queue_error_and_the_next_is_kept(queue):
    with pytest.raises(QueueError):
        await queue.keeping.add_file(FileRecord("f", "ann", "a\0b", "batch", 1, 1.0))
    await queue.keeping.add_file(FileRecord("f", "ann", "ab", "batch", 1, 1.0))
    assert await queue.keeping.file("f\0") is None
    assert await queue.keeping.list_files(FilesWanted(None, 9, after="f\0"), now=2.0) == []


def stamp(postgres, url, revision, oldest):
    database = url.secret.rsplit("/", 1)[1]
    postgres.sql(f"UPDATE alembic_version SET version_num = '{revision}'", database)  # noqa: S608  # the test's
    postgres.sql(f"UPDATE compatibility SET oldest = '{oldest}'", database)  # noqa: S608


async def until(condition, timeout_s=10.0):
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # it is polled
            await asyncio.sleep(0.02)

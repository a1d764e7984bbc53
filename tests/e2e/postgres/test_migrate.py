"""`dispatcher migrate`, and what the service's own user may do afterwards."""

import asyncio

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from dispatcher.app.clock import SystemClock
from dispatcher.config.queue import queue_url
from dispatcher.model import Job, JobId, NodeId, Tally
from dispatcher.queue.migrating import open_migration
from dispatcher.queue.migrations import HEAD
from dispatcher.queue.nodes import NodeFigures, NodeIdentity
from dispatcher.queue.postgresql import open_postgresql
from dispatcher.queue.schema import metadata
from dispatcher.queue.shared import open_shared_queue

pytestmark = pytest.mark.services
A = JobId("a")


@pytest.fixture
def migrate(cli):
    """Runs the command on a database: `await migrate(url, "--check")`."""

    async def run(url, *arguments):
        return await cli.run("migrate", *arguments, env={"DISPATCHER_QUEUE__URL": url})

    return run


async def test_a_database_is_migrated_when_it_is_told_to_and_only_then(postgres, migrate):
    url = postgres.fresh_database()
    before = await migrate(url, "--check")
    assert (before.status, before.out.count("no tables")) == (1, 1)
    assert f"this dispatcher needs revision {HEAD}" in before.out
    done = await migrate(url)
    assert (done.status, done.out) == (0, f"{url}: migrated from no tables to revision {HEAD}\n")
    assert (await migrate(url)).out == f"{url}: revision {HEAD}; nothing to do\n"
    assert (await migrate(url, "--check")).status == 0


async def test_the_revisions_lead_to_the_tables_that_the_statements_are_written_for(url):
    async with open_postgresql(url, SystemClock()) as database, database.read() as connection:
        different = await connection.run_sync(
            lambda sync: compare_metadata(MigrationContext.configure(sync), metadata)
        )
    assert different == []


async def test_the_printed_statements_do_what_the_command_does(postgres, migrate):
    postgres.role("worker")
    url, other = postgres.fresh_database(), postgres.fresh_database()
    printed = await migrate(url, "--sql", "--grant-to", "worker")
    assert (await migrate(url, "--check")).status == 1  # nothing was done
    postgres.sql(printed.out, database=url.rsplit("/", 1)[1])
    assert (await migrate(url, "--check")).status == 0
    await migrate(other, "--grant-to", "worker")
    columns = (
        "table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'public'"
    )
    rights = "table_name, privilege_type FROM information_schema.table_privileges WHERE grantee = 'worker'"
    for question in (f"SELECT {columns} ORDER BY 1, 2", f"SELECT {rights} ORDER BY 1, 2"):
        answers = {postgres.sql(question, database=each.rsplit("/", 1)[1]) for each in (url, other)}
        assert len(answers) == 1
        assert "shards" in answers.pop()


async def test_a_schema_of_its_own_is_an_option_of_the_url(postgres, migrate, shards):
    url = postgres.fresh_database()
    name = url.rsplit("/", 1)[1]
    postgres.sql("CREATE SCHEMA apart", name)
    postgres.role("worker")
    apart = queue_url(f"{url}?search_path=apart")
    assert (await migrate(apart.secret, "--grant-to", "worker")).status == 0
    assert postgres.sql("SELECT count(*) FROM apart.shards", name) == "0"
    assert (await migrate(url, "--check")).status == 1  # nothing is in the usual one
    as_worker = queue_url(apart.secret.replace("postgres@", "worker@"))
    async with open_shared_queue(as_worker, SystemClock()) as queue:
        await queue.create_job(Job(A), {})
        await queue.add_shards(A, shards([4]))
        await queue.activate(A)
        assert len(await queue.lease(NodeId("n"), 4)) == 1


async def test_two_that_migrate_at_once_do_it_once(postgres):
    url = queue_url(postgres.fresh_database())

    async def run():
        async with open_migration(url, SystemClock()) as migration:
            return (await migration.run()).before

    assert sorted(await asyncio.gather(run(), run()), key=str) == [HEAD, None]


async def test_a_newer_database_is_left_as_it_is(postgres, url, migrate):
    database = url.secret.rsplit("/", 1)[1]
    postgres.sql("UPDATE alembic_version SET version_num = '0999'", database)
    assert "0999; nothing to do" in (await migrate(url.secret)).out
    assert "newer than this dispatcher" in (await migrate(url.secret, "--check")).out


async def test_without_a_url_there_is_nothing_to_migrate(cli):
    done = await cli.run("migrate")
    assert (done.status, "queue.url: is not set" in done.err) == (2, True)


async def test_the_services_user_works_on_the_queue_and_cannot_change_its_tables(
    postgres, url, migrate, shards
):
    postgres.role("worker")
    as_worker = queue_url(url.secret.replace("postgres@", "worker@"))
    assert (await migrate(url.secret, "--grant-to", "worker")).status == 0
    node = NodeId("n")
    async with open_shared_queue(as_worker, SystemClock()) as queue:
        await queue.nodes.register(NodeIdentity(node, "h", 1, "0"))
        await queue.create_job(Job(A), {})
        await queue.add_shards(A, shards([4, 4]))
        await queue.activate(A)
        first, second = await queue.lease(node, 8)
        await queue.settle(node, first, Tally(4))
        await queue.release(node, [second])
        assert await queue.custody.take(node, A) is not None
        assert await queue.nodes.heartbeat(node, NodeFigures())
        await queue.nodes.remove(node)
        await queue.discard_job(A)
    refused = await migrate(as_worker.secret)
    assert (refused.status, refused.out) == (0, f"{as_worker}: revision {HEAD}; nothing to do\n")
    async with open_postgresql(as_worker, SystemClock()) as database:
        for statement in (
            "CREATE TABLE mine (id int)",
            "ALTER TABLE shards ADD COLUMN more int",
            "DROP INDEX shards_open",
            "TRUNCATE files",
            "UPDATE alembic_version SET version_num = '0001'",
            "DELETE FROM compatibility",
        ):
            with pytest.raises(Exception, match="its user may not do that"):
                async with database.write() as connection:
                    await connection.exec_driver_sql(statement)


async def test_a_user_who_may_not_create_tables_is_told_so(postgres, migrate):
    postgres.role("worker")
    url = postgres.fresh_database()
    done = await migrate(url.replace("postgres@", "worker@"))
    assert (done.status, "its user may not do that" in done.err) == (2, True)

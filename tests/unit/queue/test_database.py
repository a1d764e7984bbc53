import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import text

from dispatcher.errors import QueueError, StateError, StorageError
from dispatcher.model import Job, JobId
from dispatcher.queue.sql import open_queue

A = JobId("a")


async def pragma(queue, statement):
    async with queue._database.read() as connection:
        result = await connection.execute(text(f"PRAGMA {statement}"))
        return result.scalar() if result.returns_rows else None


async def test_a_full_disk_is_a_storage_error_and_is_recovered_from(sql, shards, node):
    await sql.add("a", shards([1] * 10))
    await pragma(sql.queue, f"max_page_count = {await pragma(sql.queue, 'page_count')}")
    with pytest.raises(StorageError, match="no space is left"):
        await sql.queue.add_shards(A, shards([1] * 1500, 10, 10))
    assert (await sql.queue.job(A)).shards == 10
    await pragma(sql.queue, "max_page_count = 1000000")
    await sql.queue.add_shards(A, shards([1] * 1500, 10, 10))
    assert len(await sql.queue.lease(node, 1510)) == 1510


async def test_a_read_only_database_is_a_storage_error_and_can_be_read(sql, shards):
    await sql.add("a", shards([1]))
    await pragma(sql.queue, "query_only = ON")
    with pytest.raises(StorageError, match="cannot be written"):
        await sql.queue.activate(A)
    assert (await sql.queue.job(A)).shards == 1


async def test_a_missing_directory_is_a_storage_error(tmp_path, clock):
    with pytest.raises(StorageError, match=r"queue\.db cannot be opened for writing: No such file"):
        async with open_queue(tmp_path / "nowhere" / "queue.db", clock):
            pass


async def test_a_directory_in_its_place_is_a_storage_error(tmp_path, clock):
    with pytest.raises(StorageError, match="Is a directory"):
        async with open_queue(tmp_path, clock):
            pass


async def test_a_file_that_is_no_database_is_refused_by_its_name(tmp_path, clock):
    (tmp_path / "queue.db").write_bytes(b"custom_id\n" * 1000)
    with pytest.raises(QueueError, match=r"queue\.db: it is not an SQLite database"):
        async with open_queue(tmp_path / "queue.db", clock):
            pass
    assert (tmp_path / "queue.db").read_bytes() == b"custom_id\n" * 1000


async def test_a_damaged_database_is_a_queue_error(tmp_path, clock, shards, node):
    path = tmp_path / "queue.db"
    async with open_queue(path, clock) as queue:
        await queue.create_job(Job(A), {})
        await queue.add_shards(A, shards([1] * 2000))
        await queue.activate(A)
    content = bytearray(path.read_bytes())
    content[8192:-4096] = b"\xff" * len(content[8192:-4096])
    path.write_bytes(content)
    with pytest.raises(QueueError, match="it is damaged"):
        async with open_queue(path, clock) as queue:
            await queue.lease(node, 100)


async def test_a_database_that_another_process_has_locked_is_a_queue_error(tmp_path, clock):
    path = tmp_path / "queue.db"
    async with open_queue(path, clock, busy_timeout_s=0.01) as queue:
        with closing(sqlite3.connect(path, isolation_level=None)) as another:
            another.execute("BEGIN IMMEDIATE")
            with pytest.raises(QueueError, match="another process has locked it"):
                await queue.create_job(Job(A), {})
            assert await queue.job(A) is None  # reading waits for no writer
            another.execute("ROLLBACK")
        await queue.create_job(Job(A), {})


async def test_a_newer_dispatchers_database_is_refused_and_left_alone(tmp_path, clock):
    path = tmp_path / "queue.db"
    async with open_queue(path, clock):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as newer:
        newer.execute("UPDATE alembic_version SET version_num = '0999'")
    with pytest.raises(StateError, match=r"newer dispatcher \(revision 0999; .*upgrade the dispatcher"):
        async with open_queue(path, clock):
            pass
    with closing(sqlite3.connect(path)) as newer:
        assert newer.execute("SELECT version_num FROM alembic_version").fetchall() == [("0999",)]


async def test_a_local_file_is_written_ahead_and_synced(sql):
    assert await pragma(sql.queue, "journal_mode") == "wal"
    assert await pragma(sql.queue, "synchronous") == 2
    assert await pragma(sql.queue, "foreign_keys") == 1


async def test_on_a_network_filesystem_one_process_has_the_file_to_itself(tmp_path, clock, shards, node):
    path = tmp_path / "queue.db"
    async with open_queue(path, clock):
        pass  # it was used locally before
    async with open_queue(path, clock, network_filesystem=True) as queue:
        assert await pragma(queue, "journal_mode") == "delete"
        await queue.create_job(Job(A), {})
        assert not list(tmp_path.glob("*-shm"))
        with pytest.raises(QueueError, match="another process has locked it"):
            async with open_queue(path, clock, network_filesystem=True, busy_timeout_s=0.01):
                pass
        await queue.add_shards(A, shards([1]))
        await queue.activate(A)
        assert len(await queue.lease(node, 1)) == 1

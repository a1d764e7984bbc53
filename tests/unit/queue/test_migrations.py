import sqlite3
from contextlib import closing

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from dispatcher.queue.migrations import HEAD, OLDEST, run, upgrade


def tables_and_indexes(path):
    """What the database is made of, white space aside, and the revision that it is stamped with."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master").fetchall()
        stamped = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    return {name: sql and "".join(sql.split()) for name, sql in rows}, stamped


def test_the_revisions_lead_to_the_tables_that_a_new_database_is_given(tmp_path):
    for name, make in (("made.db", lambda c: upgrade(c, "x")), ("upgraded.db", run)):
        engine = create_engine(f"sqlite:///{tmp_path / name}")
        with engine.begin() as connection:
            make(connection)
        engine.dispose()
    made, stamped = tables_and_indexes(tmp_path / "made.db")
    assert made["jobs"].startswith("CREATETABLEjobs")
    assert stamped == [(HEAD,)]
    assert tables_and_indexes(tmp_path / "upgraded.db") == (made, stamped)


def test_upgrading_again_changes_nothing(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'queue.db'}")
    for _ in range(2):
        with engine.begin() as connection:
            upgrade(connection, "x")
    engine.dispose()
    assert "shards" in tables_and_indexes(tmp_path / "queue.db")[0]


def test_head_is_the_last_revision_and_revisions_are_numbered_upwards():
    config = Config()
    config.set_main_option("script_location", "dispatcher.queue:migrations")
    revisions = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert revisions[0] == HEAD
    assert revisions == sorted(revisions, reverse=True)


def test_a_database_of_the_version_before_is_upgraded_with_its_jobs_and_shards(tmp_path):
    path = tmp_path / "queue.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config = Config(attributes={"connection": connection})
        config.set_main_option("script_location", "dispatcher.queue:migrations")
        command.upgrade(config, "0002")
    with closing(sqlite3.connect(path, isolation_level=None)) as before:
        before.execute("INSERT INTO jobs VALUES ('a', 'active', 1, 0, 1, '{}', '{}', 1, 4, 0, 0, 0)")
        before.execute(
            "INSERT INTO shards "
            "(job_id, number, first_index, count, offset, length, rejected, requests, epoch) "
            "VALUES ('a', 0, 0, 4, 0, 40, '[]', 4, 0)"
        )
    with engine.begin() as connection:
        upgrade(connection, "x")
    engine.dispose()
    with closing(sqlite3.connect(path)) as after:
        assert after.execute("SELECT job_id, number FROM shards").fetchall() == [("a", 0)]
        assert after.execute("SELECT job_id, wanted, node, epoch FROM custody").fetchall() == [
            ("a", 1, None, 0)
        ]
        assert after.execute("SELECT oldest FROM compatibility").fetchall() == [(OLDEST,)]

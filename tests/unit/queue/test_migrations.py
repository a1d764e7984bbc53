import sqlite3
from contextlib import closing

from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from dispatcher.queue.migrations import HEAD, upgrade
from dispatcher.queue.schema import metadata


def tables_and_indexes(path):
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE tbl_name <> 'alembic_version'")
        return dict(rows.fetchall())


def test_the_revisions_lead_to_the_tables_that_the_statements_use(tmp_path):
    for name, make in (("made.db", metadata.create_all), ("upgraded.db", lambda c: upgrade(c, "x"))):
        engine = create_engine(f"sqlite:///{tmp_path / name}")
        with engine.begin() as connection:
            make(connection)
        engine.dispose()
    made = tables_and_indexes(tmp_path / "made.db")
    assert made["jobs"].startswith("CREATE TABLE jobs")
    assert tables_and_indexes(tmp_path / "upgraded.db") == made


def test_upgrading_again_changes_nothing(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'queue.db'}")
    for _ in range(2):
        with engine.begin() as connection:
            upgrade(connection, "x")
    engine.dispose()
    assert "shards" in tables_and_indexes(tmp_path / "queue.db")


def test_head_is_the_last_revision_and_revisions_are_numbered_upwards():
    config = Config()
    config.set_main_option("script_location", "dispatcher.queue:migrations")
    revisions = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert revisions[0] == HEAD
    assert revisions == sorted(revisions, reverse=True)

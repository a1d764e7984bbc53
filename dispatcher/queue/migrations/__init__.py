"""The versions of the queue's tables, and the way from one to the next."""

from sqlalchemy import Connection, inspect, text

from dispatcher.errors import StateError
from dispatcher.queue.schema import metadata

HEAD = "0002"
"""The revision that this version of the dispatcher works with. Revisions are numbered upwards."""


def upgrade(connection: Connection, name: str) -> None:
    """Bring the database on this connection to HEAD, in the connection's transaction.

    Raises StateError where a newer dispatcher has written it: there is no way back.
    """
    revision = _revision(connection)
    if revision is not None and revision > HEAD:
        raise StateError(
            f"state {name} was written by a newer dispatcher (revision {revision}; this one knows {HEAD}): "
            "upgrade the dispatcher, or start with an empty state directory"
        )
    if revision is None and not inspect(connection).get_table_names():
        _make(connection)
    elif revision != HEAD:
        run(connection)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def _make(connection: Connection) -> None:
    """Make a new database's tables as they are at HEAD, and stamp it the way Alembic does.

    What the revisions lead to is the same, tests see to that; but Alembic takes as long to import as half of
    the rest, and a new database is what most runs have.
    """
    metadata.create_all(connection)
    connection.execute(
        text(
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
            "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
        )
    )
    connection.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def run(connection: Connection) -> None:
    """Take the database through every revision that it has not had."""
    # Imported here for the time that it takes.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", "dispatcher.queue:migrations")
    command.upgrade(config, "head")

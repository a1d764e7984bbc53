"""The versions of the queue's tables, and the way from one to the next."""

from io import StringIO
from typing import Any

from sqlalchemy import Connection, inspect, text

from dispatcher.errors import StateError
from dispatcher.queue.schema import metadata

HEAD = "0003"
"""The revision that this version of the dispatcher works with. Revisions are numbered upwards."""
OLDEST = "0003"
"""The oldest revision whose dispatchers work with the tables as they are at HEAD; it stands in them, too."""


def upgrade(connection: Connection, name: str) -> None:
    """Bring the SQLite database on this connection to HEAD, in the connection's transaction.

    Raises StateError where a newer dispatcher has written it: there is no way back.
    """
    revision = revision_of(connection)
    if revision is not None and revision > HEAD:
        raise StateError(
            f"state {name} was written by a newer dispatcher (revision {revision}; this one knows {HEAD}): "
            "upgrade the dispatcher, or start with an empty state directory"
        )
    if revision is None and not inspect(connection).get_table_names():
        _make(connection)
    elif revision != HEAD:
        run(connection)


def require(connection: Connection, name: str) -> str:
    """The revision of a database that others share, and that is never changed on the way.

    Raises StateError where this version of the dispatcher cannot work with it.
    """
    revision = revision_of(connection)
    if revision is None:
        raise StateError(
            f"the queue's database {name} has no tables of the dispatcher's: run `dispatcher migrate` "
            "as a user that may create them"
        )
    if revision < HEAD:
        raise StateError(
            f"the queue's database {name} is of revision {revision}, and this dispatcher needs {HEAD}: "
            "run `dispatcher migrate`; dispatchers that are at work may go on meanwhile"
        )
    if revision > HEAD and (oldest := _oldest(connection)) > HEAD:
        raise StateError(
            f"the queue's database {name} was migrated by a newer dispatcher (revision {revision}, for those "
            f"that know {oldest}; this one knows {HEAD}): upgrade this dispatcher"
        )
    return revision


def revision_of(connection: Connection) -> str | None:
    """The revision that the database is stamped with; None where it is new."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def _oldest(connection: Connection) -> str:
    oldest: str = connection.scalar(text("SELECT max(oldest) FROM compatibility"))
    return oldest


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
    connection.execute(text("INSERT INTO compatibility VALUES (:oldest)"), {"oldest": OLDEST})


def run(connection: Connection) -> None:
    """Take the database through every revision that it has not had."""
    from alembic import command  # noqa: PLC0415  # for the time that it takes

    command.upgrade(_config(connection=connection), "head")


def as_sql(revision: str | None) -> str:
    """The statements, for PostgreSQL, that lead from this revision, or from nothing, to HEAD."""
    from alembic import command  # noqa: PLC0415  # as above

    written = StringIO()
    command.upgrade(_config(output=written), f"{revision or 'base'}:head", sql=True)
    return written.getvalue()


def _config(**attributes: Any) -> Any:
    from alembic.config import Config  # noqa: PLC0415  # as above

    config = Config(attributes=attributes)
    config.set_main_option("script_location", "dispatcher.queue:migrations")
    return config

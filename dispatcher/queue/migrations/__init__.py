"""The versions of the queue's tables, and the way from one to the next."""

from sqlalchemy import Connection, inspect, text

from dispatcher.errors import StateError

HEAD = "0001"
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
    if revision != HEAD:
        _run(connection)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def _run(connection: Connection) -> None:
    # Imported here because it takes as long as the rest of the package, and only a new or old database
    # needs it.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", "dispatcher.queue:migrations")
    command.upgrade(config, "head")

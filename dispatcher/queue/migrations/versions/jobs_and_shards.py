"""The first tables: jobs and their shards."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create both, and the indexes that leasing lives on."""
    _create_jobs()
    _create_shards()
    unsettled = sa.text("settled_at IS NULL")
    leased = sa.text("settled_at IS NULL AND node IS NOT NULL")
    _create_index("shards_by_row", ["job_id", "first_index"], unique=True)
    _create_index("shards_leased", ["job_id", "lease_expires_at"], where=leased)
    _create_index("shards_open", ["job_id", "number"], where=unsettled)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("weight", sa.Double, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("details", sa.JSON, nullable=False),
        sa.Column("shards", sa.Integer, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("rejected", sa.BigInteger, nullable=False),
        sa.Column("shards_settled", sa.Integer, nullable=False),
        sa.Column("requests_settled", sa.BigInteger, nullable=False),
        sa.CheckConstraint("weight > 0", name="weight_positive"),
    )


def _create_shards() -> None:
    op.create_table(
        "shards",
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("first_index", sa.BigInteger, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("rejected", sa.JSON, nullable=False),
        sa.Column("requests", sa.Integer, nullable=False),
        sa.Column("node", sa.Text),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("lease_expires_at", sa.Double),
        sa.Column("settled_at", sa.Double),
        sa.Column("succeeded", sa.Integer),
        sa.Column("failed", sa.Integer),
        sa.Column("prompt_tokens", sa.BigInteger),
        sa.Column("completion_tokens", sa.BigInteger),
        sa.Column("errors", sa.JSON(none_as_null=True)),
    )


def _create_index(
    name: str, columns: list[str], *, unique: bool = False, where: sa.TextClause | None = None
) -> None:
    op.create_index(name, "shards", columns, unique=unique, sqlite_where=where, postgresql_where=where)

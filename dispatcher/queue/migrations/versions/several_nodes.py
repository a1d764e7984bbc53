"""Several nodes on one database: who they are, who drives which job, which servers they share."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create their tables; and make renewing a lease leave the indexes alone."""
    _create_custody()
    _create_nodes()
    _create_members()
    leased = sa.text("settled_at IS NULL AND node IS NOT NULL")
    op.drop_index("shards_leased", "shards")
    op.create_index(
        "shards_leased", "shards", ["job_id", "node"], sqlite_where=leased, postgresql_where=leased
    )
    op.create_index("jobs_by_status", "jobs", ["status"])
    _state_compatibility()
    if op.get_context().dialect.name == "postgresql":
        _suit_postgresql()


def _create_custody() -> None:
    op.create_table(
        "custody",
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("wanted", sa.Boolean, nullable=False),
        sa.Column("node", sa.Text),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("expires_at", sa.Double),
    )
    # Those that have ended are found out by whoever takes them.
    op.execute("INSERT INTO custody (job_id, wanted, epoch) SELECT id, true, 0 FROM jobs")


def _create_nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("address", sa.Text),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("heartbeat_at", sa.Double, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("in_flight", sa.Integer, nullable=False),
        sa.Column("shards_leased", sa.Integer, nullable=False),
        sa.Column("work", sa.JSON, nullable=False),
    )


def _create_members() -> None:
    op.create_table(
        "members",
        sa.Column("url", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("entry", sa.JSON, nullable=False),
        sa.Column("token", sa.Text),
        sa.Column("expires_at", sa.Double),
    )


def _state_compatibility() -> None:
    op.create_table("compatibility", sa.Column("oldest", sa.Text, primary_key=True))
    op.execute("INSERT INTO compatibility (oldest) VALUES ('0003')")


def _suit_postgresql() -> None:
    """Room on each page for a row's next version; vacuum long before a fifth of millions of rows is dead."""
    op.execute("ALTER TABLE jobs SET (fillfactor = 50)")
    op.execute(
        "ALTER TABLE shards SET (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.01, "
        "autovacuum_vacuum_threshold = 10000, autovacuum_analyze_scale_factor = 0.02)"
    )

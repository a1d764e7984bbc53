"""The queue's tables: jobs and their shards, the service's files, and what its nodes tell each other.

Payloads stay in the input file, outcomes in the journals.

A change here needs a revision in `migrations`: a test compares the two.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
)

metadata = MetaData()

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("status", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("weight", Double, nullable=False),
    Column("settings", JSON, nullable=False),
    Column("details", JSON, nullable=False),
    # Counted along with every change of a shard, so that the queue's depth is read from a few rows,
    # not summed over hundreds of thousands of settled shards.
    Column("shards", Integer, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("rejected", BigInteger, nullable=False),
    Column("shards_settled", Integer, nullable=False),
    Column("requests_settled", BigInteger, nullable=False),
    CheckConstraint("weight > 0", name="weight_positive"),
)

shards = Table(
    "shards",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("first_index", BigInteger, nullable=False),
    Column("count", Integer, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("length", BigInteger, nullable=False),
    Column("rejected", JSON, nullable=False),
    Column("requests", Integer, nullable=False),
    # A lease: who holds it, and until when. Both are kept once the shard is settled, so that its node
    # can settle it again; a free shard has neither.
    Column("node", Text),
    Column("epoch", Integer, nullable=False),
    Column("lease_expires_at", Double),
    Column("settled_at", Double),
    Column("succeeded", Integer),
    Column("failed", Integer),
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("errors", JSON(none_as_null=True)),
)

custody = Table(
    "custody",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    # Whether the job has not come to its end: some node is to take it there.
    Column("wanted", Boolean, nullable=False),
    Column("node", Text),
    Column("epoch", Integer, nullable=False),
    Column("expires_at", Double),
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    # Where its API is reached by the others.
    Column("address", Text),
    Column("started_at", Double, nullable=False),
    Column("heartbeat_at", Double, nullable=False),
    Column("state", Text, nullable=False),
    Column("in_flight", Integer, nullable=False),
    Column("shards_leased", Integer, nullable=False),
    # What it does for each job, for views: see nodes.JobFigures.
    Column("work", JSON, nullable=False),
)

members = Table(
    "members",
    metadata,
    Column("url", Text, primary_key=True),
    # A server may be added and held out at once.
    Column("kind", Text, primary_key=True),
    # Its key and limit: a secret.
    Column("entry", JSON, nullable=False),
    # Whose token registered it.
    Column("token", Text),
    Column("expires_at", Double),
)

compatibility = Table(
    "compatibility",
    metadata,
    # The oldest revision whose dispatchers work with these tables. One row.
    Column("oldest", Text, primary_key=True),
)

_open = shards.c.settled_at.is_(None)
_leased = _open & shards.c.node.is_not(None)

files = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
)

# Lists an owner's files by age.
Index("files_by_age", files.c.owner, files.c.created_at, files.c.id)
# Finds the next shards to lease without walking over the settled ones.
Index("shards_open", shards.c.job_id, shards.c.number, sqlite_where=_open, postgresql_where=_open)
# Sums up what is being worked on. Without the lease's end: to renew it must not touch any index, so that
# PostgreSQL updates the row in place.
Index("shards_leased", shards.c.job_id, shards.c.node, sqlite_where=_leased, postgresql_where=_leased)
# Finds the active jobs among thousands that have ended.
Index("jobs_by_status", jobs.c.status)
# Finds the shard of a rejected row.
Index("shards_by_row", shards.c.job_id, shards.c.first_index, unique=True)

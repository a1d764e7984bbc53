"""How PostgreSQL finds the rows: by the right index, whatever it knows of the table."""

import pytest
from sqlalchemy.dialects import postgresql

from dispatcher.app.clock import SystemClock
from dispatcher.model import Job, JobId, Lease, NodeId, Shard
from dispatcher.queue import statements
from dispatcher.queue.postgresql import database_time, open_postgresql

pytestmark = pytest.mark.services
A, NODE = JobId("a"), NodeId("n")
LEASE = Lease(Job(A), Shard(9000, 0, 1, 0, 10), 1)
FILL = """
INSERT INTO jobs SELECT 'a', 'active', 1, 0, 1, '{}', '{}', 30000, 120000, 0, 10000, 40000;
INSERT INTO shards (job_id, number, first_index, count, "offset", length, rejected, requests, node, epoch,
                    lease_expires_at, settled_at)
SELECT 'a', n, n * 4, 4, n * 40, 40, '[]', 4, CASE WHEN n < 10010 THEN 'n' END, 1,
       CASE WHEN n < 10010 THEN 2e9 END, CASE WHEN n < 10000 THEN 1 END FROM generate_series(0, 29999) n
"""


def searches(now):
    return {
        "shares": (statements.shares(now), "shards_leased"),
        "depth": (statements.depth(now), "shards_leased"),
        "ready": (statements.ready(A, -1, now, 8), "shards_open"),
        "claim": (statements.claim(NODE, [LEASE], now, 60), "shards_pkey"),
        "renew": (statements.renew(NODE, [LEASE], now, 60), "shards_pkey"),
        "page": (statements.page(A, 9000, 8), "shards_pkey"),
        "shard_of_row": (statements.shard_of_row(A, 7), "shards_by_row"),
    }


@pytest.fixture
async def explain(postgres, url):
    postgres.sql(FILL, url.secret.rsplit("/", 1)[1])
    async with open_postgresql(url, SystemClock()) as database, database.read() as connection:

        async def plan(statement):
            literal = {"literal_binds": True}
            text = str(statement.compile(dialect=postgresql.dialect(), compile_kwargs=literal))
            rows = await connection.exec_driver_sql(f"EXPLAIN ANALYZE {text}")
            return "\n".join(row[0] for row in rows)

        plan.analyze = lambda: connection.exec_driver_sql("ANALYZE")
        yield plan


@pytest.mark.parametrize("analyzed", [False, True])
async def test_what_a_node_asks_for_all_the_time_is_found_by_its_index(explain, analyzed):
    if analyzed:
        await explain.analyze()
    for name, (statement, index) in searches(database_time()).items():
        plan = await explain(statement)
        assert index in plan, f"{name}: {plan}"
        assert "Seq Scan on shards" not in plan, f"{name}: {plan}"


async def test_renewing_a_lease_leaves_the_indexes_alone(postgres, url):
    database = url.secret.rsplit("/", 1)[1]
    postgres.sql(FILL, database)
    postgres.sql("UPDATE shards SET lease_expires_at = 3e9 WHERE number IN (10001, 10004)", database)
    postgres.sql("SELECT pg_stat_force_next_flush()", database)
    counted = postgres.sql(
        "SELECT pg_stat_clear_snapshot(), n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables "
        "WHERE relname = 'shards'",
        database,
    )
    assert counted.split("|")[1:] == ["2", "2"]

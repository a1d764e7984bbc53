import pytest
from sqlalchemy import create_engine, func, literal
from sqlalchemy.dialects import postgresql, sqlite

from dispatcher.model import Job, JobId, Lease, NodeId, Shard, Tally
from dispatcher.queue import statements
from dispatcher.queue.records import JobStatus
from dispatcher.queue.schema import metadata

A = JobId("a")
NODE = NodeId("n")
LEASE = Lease(Job(A), Shard(0, 0, 1, 0, 10), 1)
NOW = literal(1.0)


def every_statement(now):
    return {
        "shares": statements.shares(now),
        "ready": statements.ready(A, -1, now, 8),
        "claim": statements.claim(NODE, [LEASE], now, 60),
        "renew": statements.renew(NODE, [LEASE], now, 60),
        "release": statements.release(NODE, [LEASE]),
        "settle": statements.settle(NODE, LEASE, Tally(), now),
        "settled_by": statements.settled_by(NODE, LEASE),
        "depth": statements.depth(now),
        "jobs_by_age": statements.jobs_by_age(),
        "set_details": statements.set_details(A, {}),
        "set_settings": statements.set_settings(A, {}),
        "count": statements.count(A, rows=1),
        "set_status": statements.set_status(A, JobStatus.ACTIVE),
        "shard_of_row": statements.shard_of_row(A, 7),
        "amend": statements.amend(A, 0, [1], 1),
        "tally": statements.tally(A),
        "page": statements.page(A, -1, 8, statements.is_settled(settled=True)),
        "reopen": statements.reopen(A, statements.has_failures()),
        "release_all": statements.release_all(),
    }


@pytest.fixture
def plan():
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        metadata.create_all(connection)

        def explain(statement):
            compiled = statement.compile(
                dialect=sqlite.dialect(), compile_kwargs={"render_postcompile": True}
            )
            rows = connection.exec_driver_sql(
                f"EXPLAIN QUERY PLAN {compiled}", (None,) * str(compiled).count("?")
            )
            return "\n".join(row.detail for row in rows)

        yield explain
    engine.dispose()


def test_finding_the_next_shards_does_not_walk_over_the_settled_ones(plan):
    assert "SEARCH shards USING INDEX shards_open" in plan(statements.ready(A, -1, NOW, 8))


@pytest.mark.parametrize("name", ["shares", "depth"])
def test_what_is_leased_is_summed_over_leased_shards_only(plan, name):
    assert "SEARCH shards USING INDEX shards_leased" in plan(every_statement(NOW)[name])


@pytest.mark.parametrize("name", ["claim", "renew", "release", "settle", "settled_by", "amend"])
def test_a_shard_is_found_by_its_number(plan, name):
    assert "(job_id=? AND number=?)" in plan(every_statement(NOW)[name])


def test_the_shard_of_a_row_is_found_by_its_first_row(plan):
    assert "USING INDEX shards_by_row" in plan(statements.shard_of_row(A, 7))


@pytest.mark.parametrize("name", sorted(every_statement(NOW)))
def test_every_statement_that_searches_shards_uses_an_index(plan, name):
    assert "SCAN shards\n" not in plan(every_statement(NOW)[name]) + "\n"


def test_every_statement_is_postgresql_as_well():
    now = func.extract("epoch", func.clock_timestamp())
    for statement in every_statement(now).values():
        assert str(statement.compile(dialect=postgresql.dialect()))


def test_nodes_that_share_postgresql_skip_what_another_one_is_taking():
    compiled = statements.ready(A, -1, NOW, 8).compile(dialect=postgresql.dialect())
    assert str(compiled).endswith("FOR UPDATE SKIP LOCKED")

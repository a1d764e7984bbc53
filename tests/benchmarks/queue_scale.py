"""What the queue costs on PostgreSQL: `python tests/benchmarks/queue_scale.py`.

Statements for each 1,000 rows of a job that the service runs; the time of a lease with 4 thousand shards in
the queue and with 4 million, which are 1 billion rows. See docs/benchmarks.md. `--check` exits with 1 where
either is more than is promised.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from postgres_server import Postgres, binaries, open_postgres
from services import rows as batch_rows
from services import serving

from dispatcher.app.clock import SystemClock
from dispatcher.config.queue import QueueUrl, queue_url
from dispatcher.model import Job, JobId, NodeId, Tally
from dispatcher.queue.migrating import open_migration
from dispatcher.queue.records import JobStatus
from dispatcher.queue.shared import open_shared_queue
from dispatcher.queue.sql import SqlQueue
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.server import FakeServer
from dispatcher.testing.settings import FakeServerSettings

STATEMENTS_MAX = 30
RATIO_MAX = 2.0
JOBS = 10
FEW, MANY = 4_000, 4_000_000
SHARD_ROWS = 256
LEASES = 600
WANT = 2 * SHARD_ROWS


def main() -> None:
    """Measure, print, and tell by the exit status whether it is as promised."""
    options = _options()
    try:
        binaries()
    except BaseException as error:  # noqa: BLE001  # pytest's, which are no Exceptions
        sys.stdout.write(f"skipped: {error}\n")
        raise SystemExit(1 if os.environ.get("DISPATCHER_REQUIRE_SERVICES") else 0) from None
    with open_postgres() as postgres, tempfile.TemporaryDirectory() as folder:
        statements = asyncio.run(_statements(postgres, Path(folder), options.rows))
        few, many = asyncio.run(_leases(postgres, options.shards))
    ratio = many.p99 / few.p99
    sys.stdout.write(
        f"statements for each 1,000 rows: {statements:.1f}\n{few}\n{many}\np99: {ratio:.2f} times\n"
    )
    if options.check and (statements > STATEMENTS_MAX or ratio > RATIO_MAX):
        sys.stderr.write(f"missed: at most {STATEMENTS_MAX} statements and {RATIO_MAX} times are promised\n")
        raise SystemExit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="of the job whose statements are counted")
    parser.add_argument("--shards", type=int, default=MANY, help="in the large queue")
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


# Statements


async def _statements(postgres: Postgres, folder: Path, rows: int) -> float:
    """What the server counts, BEGIN and COMMIT included, from the job's first row in flight to its end."""
    url = await _migrated(postgres)
    database = url.secret.rsplit("/", 1)[1]
    await asyncio.to_thread(postgres.sql, "CREATE EXTENSION pg_stat_statements", database)
    async with AsyncExitStack() as stack:
        engine = EngineSettings(max_sequences=256, decode_step_s=0.001, prefill_tokens_per_s=1e9)
        servers = [FakeServer(FakeServerSettings(answer_tokens=1, engine=engine)) for _ in range(2)]
        for server in servers:
            await stack.enter_async_context(server)
        settings = {"queue": {"url": url.secret}, "pool": {"limit": 128}, "results": {"sync_s": 1}}
        stage = await stack.enter_async_context(serving(folder, *servers, **settings))
        batch = await stage.submit(batch_rows(rows))
        await stage.until(batch, lambda found: found.request_counts.completed > 0)
        began = time.perf_counter()
        await asyncio.to_thread(postgres.sql, "SELECT pg_stat_statements_reset()", database)
        ended = await stage.until_ended(batch, 120)
        seconds = time.perf_counter() - began
        assert ended.request_counts.completed == rows, ended
    counted = await asyncio.to_thread(postgres.sql, STATEMENTS, database)
    for line in counted.splitlines():
        calls, statement = line.split("|", 1)
        sys.stdout.write(f"  {int(calls):6,}  {statement}\n")
    sys.stdout.write(f"{rows:,} rows in {seconds:.0f} s\n")
    return sum(int(line.split("|", 1)[0]) for line in counted.splitlines()) / rows * 1000


STATEMENTS = (
    "SELECT calls, left(regexp_replace(query, '\\s+', ' ', 'g'), 90) FROM pg_stat_statements s "
    "JOIN pg_database d ON d.oid = s.dbid WHERE datname = current_database() "
    "AND query NOT LIKE '%pg_stat_statements%' ORDER BY calls DESC"
)


# Leases


@dataclass
class Measured:
    """Times of one queue, in milliseconds."""

    shards: int
    leases: list[float] = field(default_factory=list)
    settlements: list[float] = field(default_factory=list)
    depths: list[float] = field(default_factory=list)

    @property
    def p99(self) -> float:
        """Of the leases."""
        return quantiles(self.leases, n=100)[98]

    def __str__(self) -> str:
        return (
            f"{self.shards:9,} shards: lease {median(self.leases):.1f} ms, p99 {self.p99:.1f} ms; "
            f"settle {median(self.settlements):.1f} ms; depth {median(self.depths):.1f} ms"
        )


async def _leases(postgres: Postgres, shards: int) -> tuple[Measured, Measured]:
    """Both in turn, so that whatever else the machine does happens to both."""
    few, many = Measured(FEW), Measured(shards)
    async with _filled(postgres, FEW) as small, _filled(postgres, shards) as large:
        for queue, _ in ((small, few), (large, many)):  # statements are prepared
            await _work(queue, Measured(0))
        for _ in range(LEASES):
            await _work(small, few)
            await _work(large, many)
    return few, many


async def _work(queue: SqlQueue, measured: Measured) -> None:
    node = NodeId("node")
    began = time.perf_counter()
    leases = await queue.lease(node, WANT)
    measured.leases.append((time.perf_counter() - began) * 1000)
    assert len(leases) == WANT // SHARD_ROWS
    for lease in leases:
        began = time.perf_counter()
        await queue.settle(node, lease, Tally(lease.shard.count))
        measured.settlements.append((time.perf_counter() - began) * 1000)
    began = time.perf_counter()
    await queue.depth()
    measured.depths.append((time.perf_counter() - began) * 1000)


@asynccontextmanager
async def _filled(postgres: Postgres, shards: int) -> AsyncIterator[SqlQueue]:
    """Ten jobs, of whose shards a third are settled, and vacuumed as the server does it by itself in time."""
    url = await _migrated(postgres)
    began = time.perf_counter()
    async with open_shared_queue(url, SystemClock()) as queue:
        for number in range(JOBS):
            job_id = JobId(f"batch_{number:024d}")
            await queue.create_job(Job(job_id), {})
            await queue.set_status(job_id, JobStatus.ACTIVE)
        each, settled = shards // JOBS, shards // JOBS // 3
        for statements in (SHARDS, COUNTS):
            filled = statements.format(each=each, settled=settled)
            await asyncio.to_thread(postgres.sql, filled, _name(url))
        await asyncio.to_thread(postgres.sql, "VACUUM ANALYZE", _name(url))
        sys.stdout.write(f"{shards:,} shards made in {time.perf_counter() - began:.0f} s\n")
        yield queue


# Without checks row by row, and with the indexes made anew as they were: a minute in place of five.
SHARDS = """
SET session_replication_role = replica;
SET maintenance_work_mem = '1GB';
CREATE TEMP TABLE made_anew AS
  SELECT indexdef FROM pg_indexes WHERE tablename = 'shards' AND indexname <> 'shards_pkey';
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT indexname FROM pg_indexes WHERE tablename = 'shards' AND indexname <> 'shards_pkey' LOOP
    EXECUTE 'DROP INDEX ' || name;
  END LOOP;
END $$;
ALTER TABLE shards DROP CONSTRAINT shards_pkey;
INSERT INTO shards (job_id, number, first_index, count, "offset", length, rejected, requests, node, epoch,
                    lease_expires_at, settled_at, succeeded, failed, prompt_tokens, completion_tokens)
SELECT id, n, n * 256::bigint, 256, n * 100000::bigint, 100000, '[]', 256,
       CASE WHEN n < {settled} THEN 'node' END, 1, CASE WHEN n < {settled} THEN 1 END,
       CASE WHEN n < {settled} THEN 1 END, CASE WHEN n < {settled} THEN 256 END,
       CASE WHEN n < {settled} THEN 0 END, CASE WHEN n < {settled} THEN 0 END,
       CASE WHEN n < {settled} THEN 0 END
FROM jobs, generate_series(0, {each} - 1) n;
ALTER TABLE shards ADD CONSTRAINT shards_pkey PRIMARY KEY (job_id, number);
DO $$ DECLARE again text; BEGIN
  FOR again IN SELECT indexdef FROM made_anew LOOP
    EXECUTE again;
  END LOOP;
END $$;
"""
COUNTS = """
UPDATE jobs SET shards = {each}, rows = {each} * 256::bigint, shards_settled = {settled},
                requests_settled = {settled} * 256::bigint
"""


async def _migrated(postgres: Postgres) -> QueueUrl:
    url = queue_url(postgres.fresh_database())
    async with open_migration(url, SystemClock()) as migration:
        await migration.run()
    return url


def _name(url: QueueUrl) -> str:
    return url.secret.rsplit("/", 1)[1]


if __name__ == "__main__":
    main()

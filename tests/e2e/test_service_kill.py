"""Kill -9 of `dispatcher serve`, at random moments and during jobs: each is as if nothing had happened."""

import asyncio
import json
import re
import time
from collections import Counter
from random import Random

import pytest
from commands import until
from jobs import CHAT, Ledger, lines, read, recorded_in, row, sends
from live_traffic import LiveTraffic
from openai import AsyncOpenAI

from dispatcher.results.verify import verify
from dispatcher.testing.engine import EngineSettings

pytestmark = pytest.mark.timeout(300)
KILLS = 20
ROWS = 800
"""Of each job."""
IN_FLIGHT = 16
"""At each server."""
ANSWERED_LAST = 16
"""Rows that were answered in the moment before a kill: an outcome is written about 10 ms after it came."""


class Serving:
    """`dispatcher serve` on one storage directory, started again and again."""

    def __init__(self, cli, directory, servers):
        self._cli = cli
        self._config = directory / "serve.json"
        self.data = directory / "data"
        self.url = None
        self.up = False
        self.kills = 0
        settings = {
            "servers": [server.url for server in servers],
            "storage": {"url": str(self.data)},
            "api": {"port": 0},
            "queue": {"shard_size": 16},
            "pool": {"limit": IN_FLIGHT},
            "telemetry": {"log_format": "json"},
        }
        self._config.write_text(json.dumps(settings))  # YAML holds JSON

    async def start(self):
        self.command = await self._cli.start("serve", "--config", self._config)
        port = (await until(lambda: re.search(r'"port": ?(\d+)', self.command.err)))[1]
        self.url = f"http://127.0.0.1:{port}"
        self.up = True
        return self.client()

    def client(self):
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    async def kill(self):
        assert self.command.running, self.command.err
        self.up = False
        self.kills += 1
        await self.command.kill()

    def recorded(self):
        return recorded_in(self.data.glob("journals/*/*/*.journal"))


async def submitted(client, priority, first=0):
    """A job of rows whose numbers no other job has."""
    requests = [row(number) for number in range(first, first + ROWS)]
    file = await client.files.create(file=("in.jsonl", lines(requests).encode()), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id,
        endpoint=CHAT,
        completion_window="1h",
        extra_body={"priority": priority},
    )


async def all_ended(client, batches, timeout_s=120):
    async with asyncio.timeout(timeout_s):
        while True:
            found = [await client.batches.retrieve(batch.id) for batch in batches]
            if all(batch.status == "completed" for batch in found):
                return found
            await asyncio.sleep(0.1)


async def test_kills_at_random_moments_lose_nothing_and_finish_every_job(cli, serve, tmp_path):
    seed = time.time_ns() % 100_000
    print(f"seed {seed}")  # noqa: T201  # to run a failure again
    random = Random(seed)
    engine = EngineSettings(max_sequences=IN_FLIGHT, decode_step_s=0.01)
    servers = [await serve(engine=engine, answer_tokens=24) for _ in range(2)]
    serving = Serving(cli, tmp_path, servers)
    ledger, traffic, batches = Ledger(servers, serving.recorded), LiveTraffic(serving), []
    async with traffic.asking(await serve(answer_tokens=24)):
        for kill in range(KILLS):
            async with await serving.start() as client:
                if kill < 3:
                    batches.append(await submitted(client, priority=kill, first=kill * 10_000))
                await asyncio.sleep(random.uniform(0.0, 2.0))
                await serving.kill()
            ledger.settle()
        recorded = len(serving.recorded())
        async with await serving.start() as client:
            for batch in await all_ended(client, batches):
                counts = batch.request_counts
                assert (counts.total, counts.completed, counts.failed) == (ROWS, ROWS, 0)
                prove(serving.data, batch, tmp_path)
    ledger.settle()
    repeated = sum(count - 1 for count in Counter(sends(*servers)).values())
    print(f"{recorded} rows recorded by killed services, {repeated} sent again;")  # noqa: T201
    print(f"{traffic.answered} live requests answered, {traffic.broken} broken by kills")  # noqa: T201
    assert recorded > ROWS // 2, "the kills came before anything was recorded: the test has tested nothing"
    assert repeated <= KILLS * (len(servers) * IN_FLIGHT + ANSWERED_LAST)
    assert traffic.answered > 10 * KILLS


async def test_a_kill_while_files_are_written_leaves_whole_ones(cli, serve, tmp_path):
    server = await serve()
    serving = Serving(cli, tmp_path, [server])
    async with await serving.start() as client:
        batch = await submitted(client, priority=0)
    for attempt in range(10):
        await asyncio.sleep(0.05 * attempt)
        await serving.kill()
        async with await serving.start() as client:
            found = await client.batches.retrieve(batch.id)
        if found.status == "completed":
            prove(serving.data, found, tmp_path)
    async with serving.client() as client:
        (found,) = await all_ended(client, [batch])
    prove(serving.data, found, tmp_path)


def prove(data, batch, work):
    output = data / "files" / batch.output_file_id
    assert batch.error_file_id is None
    assert len(read(output)) == ROWS
    assert verify(data / "inputs" / batch.id, output, None, work_dir=work).ok

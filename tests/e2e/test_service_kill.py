"""Kill -9 of `dispatcher serve` at random moments during three jobs: each is as if nothing had happened."""

import asyncio
import json
import re
from random import Random

import pytest
from commands import until
from jobs import CHAT, lines, read, rows, sends
from openai import APIConnectionError, AsyncOpenAI

from dispatcher.results.verify import verify
from dispatcher.testing.engine import EngineSettings

pytestmark = pytest.mark.timeout(300)
KILLS = 8
ROWS = 600
IN_FLIGHT = 16
"""At each server."""


class Serving:
    """`dispatcher serve` on one storage directory, started again and again."""

    def __init__(self, cli, directory, servers):
        self._cli = cli
        self._config = directory / "serve.json"
        self.data = directory / "data"
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
        self._port = (await until(lambda: re.search(r'"port": ?(\d+)', self.command.err)))[1]
        return self.client()

    def client(self):
        return AsyncOpenAI(base_url=f"http://127.0.0.1:{self._port}/v1", api_key="none", max_retries=0)


async def submitted(client, priority):
    file = await client.files.create(file=("in.jsonl", lines(rows(ROWS)).encode()), purpose="batch")
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
    engine = EngineSettings(max_sequences=IN_FLIGHT, decode_step_s=0.01)
    servers = [await serve(engine=engine, answer_tokens=24) for _ in range(2)]
    serving, random = Serving(cli, tmp_path, servers), Random(7)
    batches = []
    for kill in range(KILLS):
        async with await serving.start() as client:
            if kill < 3:
                batches.append(await submitted(client, priority=kill % 2))
            await asyncio.sleep(random.uniform(0.0, 2.0))
            await serving.command.kill()
            with pytest.raises(APIConnectionError):
                await client.batches.retrieve(batches[0].id)
    async with await serving.start() as client:
        for batch in await all_ended(client, batches):
            counts = batch.request_counts
            assert (counts.total, counts.completed, counts.failed) == (ROWS, ROWS, 0)
            prove(serving.data, batch, tmp_path)
    assert len(sends(*servers)) <= 3 * ROWS + KILLS * 3 * IN_FLIGHT * len(servers)


async def test_a_kill_while_files_are_written_leaves_whole_ones(cli, serve, tmp_path):
    server = await serve()
    serving = Serving(cli, tmp_path, [server])
    async with await serving.start() as client:
        batch = await submitted(client, priority=0)
    for attempt in range(10):
        await asyncio.sleep(0.05 * attempt)
        await serving.command.kill()
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

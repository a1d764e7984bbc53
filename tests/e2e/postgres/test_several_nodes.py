"""Four nodes as processes, on a real PostgreSQL and a real S3 server, in every weather.

Nodes are killed and frozen at random, the database is restarted, the store refuses for a while. Every row is
answered once all the same; and one that was frozen past its leases writes nothing that counts.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import openai
import pytest
from commands import until as until_found
from jobs import CHAT, MODEL, lines, row
from object_store import Proxy
from openai import AsyncOpenAI
from vllm_fleet import free_port

from dispatcher.results.verify import verify

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]
NODES, SERVERS = 4, 8
ROWS = int(os.environ.get("SEVERAL_NODES_ROWS", "100000"))
LEASE_S = 6.0
REFUSED_S = 20.0
"""How long the store answers 503."""
FROZEN_S = LEASE_S + 4.0
KILLS, FREEZES = 4, 3


@dataclass
class Node:
    """`dispatcher serve`, killed and started again."""

    cli: object
    config: Path
    environment: dict
    starts: int = 0
    command: object = field(default=None, repr=False)
    url: str | None = None

    async def start(self):
        self.command = await self.cli.start("serve", "--config", self.config, env=self.environment)
        port = (await until_found(lambda: re.search(r'"port": ?(\d+)', self.command.err), 60))[1]
        self.url = f"http://127.0.0.1:{port}"
        self.starts += 1

    async def kill(self):
        await self.command.kill()


def config_of(number, folder, servers, database, bucket):
    settings = {
        "servers": servers,
        "queue": {"url": database.secret, "lease_s": LEASE_S},
        "storage": {"url": bucket.url, "directory": str(folder / f"node-{number}")},
        "results": {"checkpoint_s": 5},
        "pool": {"limit": 8},
        "api": {"port": 0},
        "dispatch": {"drain_s": 5},
        "telemetry": {"log_format": "json"},
    }
    path = folder / f"node-{number}.json"
    path.write_text(json.dumps(settings))  # YAML holds JSON
    return path


@contextlib.contextmanager
def fake_servers(count):
    """So many servers that answer at once, each a process."""
    ports = [free_port() for _ in range(count)]
    command = [sys.executable, "-m", "dispatcher", "fake-server", "--model", MODEL, "--instant", "--port"]
    processes = [
        subprocess.Popen([*command, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for port in ports
    ]
    try:
        yield [f"http://127.0.0.1:{port}" for port in ports]
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Weather:
    """What happens to the nodes, the database and the store; one thing after the other, at random times."""

    def __init__(self, nodes, postgres, proxy, random):
        self.nodes, self.postgres, self.proxy, self.random = nodes, postgres, proxy, random
        self.done = Counter()

    async def blow(self):
        kinds = ["kill"] * KILLS + ["freeze"] * FREEZES + ["database"] * 2
        self.random.shuffle(kinds)
        kinds.insert(self.random.randint(0, 2), "store")  # before the rows are all done, on a fast machine
        for kind in kinds:
            await asyncio.sleep(self.random.uniform(0.5, 2.0))
            await getattr(self, kind)()
            self.done[kind] += 1

    async def kill(self):
        node = self.random.choice(self.nodes)
        await node.kill()
        await asyncio.sleep(self.random.uniform(0.0, 2.0))
        await node.start()

    async def freeze(self):
        node = self.random.choice(self.nodes)
        node.command.send(signal.SIGSTOP)
        await asyncio.sleep(FROZEN_S)
        node.command.send(signal.SIGCONT)

    async def database(self):
        await asyncio.to_thread(self.postgres.stop)
        await asyncio.sleep(self.random.uniform(1.0, 3.0))
        await asyncio.to_thread(self.postgres.start)

    async def store(self):
        self.proxy.refusing = True
        await asyncio.sleep(REFUSED_S)
        self.proxy.refusing = False


async def asked(nodes, ask):
    """What some node answers: any of them may be away just now."""
    until = time.monotonic() + 60
    while True:
        for node in nodes:
            async with AsyncOpenAI(
                base_url=f"{node.url}/v1", api_key="none", max_retries=0, timeout=10
            ) as sdk:
                with contextlib.suppress(openai.APIError):
                    return await ask(sdk)
        assert time.monotonic() < until, "no node answers"
        await asyncio.sleep(0.5)


async def test_every_row_once_whatever_happens(cli, postgres, url, s3, bucket, tmp_path):
    seed = time.time_ns() % 100_000
    print(f"seed {seed}")  # noqa: T201  # to run a failure again
    requests = [row(number) for number in range(ROWS)]
    (tmp_path / "in.jsonl").write_text(lines(requests))
    with fake_servers(SERVERS) as servers:
        async with Proxy(s3.endpoint) as proxy:
            configs = [config_of(number, tmp_path, servers, url, bucket) for number in range(NODES)]
            nodes = [Node(cli, config, s3.environment(proxy.endpoint)) for config in configs]
            for node in nodes:
                await node.start()
            batch = await asked(nodes, lambda sdk: submit(sdk, tmp_path / "in.jsonl"))
            weather = Weather(nodes, postgres, proxy, Random(seed))
            began = time.monotonic()
            await weather.blow()
            found = await ended(nodes, batch.id)
            seconds = time.monotonic() - began
            counts = found.request_counts
            assert (found.status, counts.completed, counts.failed) == ("completed", ROWS, 0), found
            content = await asked(nodes, lambda sdk: sdk.files.content(found.output_file_id))
            (tmp_path / "out.jsonl").write_bytes(content.content)
            logs = [node.command.err for node in nodes]
            for node in nodes:
                await node.kill()
    assert verify(tmp_path / "in.jsonl", tmp_path / "out.jsonl", None, work_dir=tmp_path).ok
    lost = sum(log.count('"lease_lost"') for log in logs)
    print(f"{ROWS} rows in {seconds:.0f} s, {dict(weather.done)}, {lost} leases lost by nodes that lived")  # noqa: T201
    assert proxy.refused > 0
    assert not any('"level": "critical"' in log or "Traceback" in log for log in logs)


async def submit(sdk, path):
    file = await sdk.files.create(file=("in.jsonl", path.read_bytes()), purpose="batch")
    return await sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


async def ended(nodes, batch, timeout_s=500):
    until = time.monotonic() + timeout_s
    while True:
        found = await asked(nodes, lambda sdk: sdk.batches.retrieve(batch))
        if found.status not in ("validating", "in_progress", "finalizing"):
            return found
        assert time.monotonic() < until, found
        await asyncio.sleep(0.5)

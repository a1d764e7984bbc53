"""Nodes as a service tells of them; tests/e2e/postgres has several."""

import importlib.metadata
import os
import socket
import time

from jobs import rows
from keyed_service import ADMIN, USER, keyed
from services import serving

from dispatcher.testing.engine import EngineSettings

SLOW = EngineSettings(max_sequences=4, decode_step_s=0.02)


async def test_a_service_on_its_own_queue_is_one_node(tmp_path):
    async with keyed(tmp_path / "data") as asking:
        for key in (USER, ADMIN):
            status, answer, _ = await asking.get("/nodes", key=key)
            (node,) = answer["data"]
            assert (status, answer["object"], node["state"], node["here"]) == (200, "list", "active", True)
            assert (node["host"], node["pid"]) == (socket.gethostname(), os.getpid())
            assert node["version"] == importlib.metadata.version("dispatcher")
            assert 0 <= time.time() - node["started_at"] < 60
            idle = ("silent_s", "in_flight", "shards", "jobs", "rows_per_s", "tokens_per_s")
            assert [node[name] for name in idle] == [0, 0, 0, 0, 0, 0]
        assert (await asking.get("/nodes"))[0] == 401
        page = (await asking.get("/metrics", key=ADMIN))[1]
        for state, count in (("active", 1), ("draining", 0), ("silent", 0)):
            assert f'dispatcher_nodes{{state="{state}"}} {count}.0\n' in page


async def test_what_a_node_does_is_told(tmp_path, serve):
    server = await serve(answer_tokens=2, engine=SLOW)
    async with serving(tmp_path / "data", server, pool={"limit": 4}) as stage:
        batch = await stage.submit(rows(200))
        await stage.until(batch, lambda found: found.request_counts.completed > 5)
        await stage.until_job(batch, lambda job: job["rows_per_s"] > 0)  # sampled four times a second
        (node,) = (await stage.ask("GET", "/nodes"))[1]["data"]
        assert node["jobs"] == 1
        assert 0 < node["in_flight"] <= 4
        assert 1 <= node["shards"] <= 13
        assert node["rows_per_s"] > 0
        assert node["tokens_per_s"] > 0

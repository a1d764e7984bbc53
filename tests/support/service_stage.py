"""A service in this process with fake servers to drive, as the dashboard's tests use it."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp

from dispatcher.app.service import Service
from dispatcher.config import load_config

QUICK = {
    "probe_interval_s": 0.2,
    "scrape_interval_s": 0.2,
    "readmit_backoff_min_s": 0.2,
    "readmit_backoff_max_s": 0.4,
}


@asynccontextmanager
async def running(directory, servers, port=0, **api):
    """A service that runs; its URL."""
    settings = {
        "servers": [server.url for server in servers],
        "pool": QUICK,
        "storage": {"url": str(directory)},
        "api": {"port": port, **api},
    }
    service = Service(load_config(None, settings, {}))
    serving = asyncio.create_task(service.run())
    try:
        async with asyncio.timeout(10):
            while service.address is None and not serving.done():  # noqa: ASYNC110  # a test may poll
                await asyncio.sleep(0.02)
        if serving.done():
            serving.result()
        yield "http://{}:{}".format(*service.address)
    finally:
        service.request_stop()
        service.request_stop()
        async with asyncio.timeout(20):
            await serving


def rows(count, model="fake-model"):
    """An input of chat requests."""
    for number in range(count):
        body = {"model": model, "messages": [{"role": "user", "content": f"row-{number}"}]}
        yield json.dumps(
            {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        )


async def submit(url, count, *, key=None, **fields):
    """Submit a job; its id."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(url, headers=headers) as session:
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", "\n".join(rows(count)).encode(), filename="rows.jsonl")
        async with session.post("/v1/files", data=form) as answer:
            assert answer.status == 200, await answer.text()
            input_file_id = (await answer.json())["id"]
        job = {
            "input_file_id": input_file_id,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            **fields,
        }
        async with session.post("/v1/batches", json=job) as answer:
            assert answer.status == 200, await answer.text()
            return (await answer.json())["id"]

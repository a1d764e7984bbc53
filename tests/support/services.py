"""The service in this process: on a storage directory, with fake servers, asked by the real `openai` SDK."""

import asyncio
import io
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from jobs import CHAT, lines, rows
from openai import AsyncOpenAI

from dispatcher.app.service import Service
from dispatcher.config import load_config

WITHIN_S = 30.0
ENDED = ("completed", "failed", "cancelled", "expired")


@dataclass
class Stage:
    """A service that runs."""

    service: Service
    url: str
    sdk: AsyncOpenAI
    http: aiohttp.ClientSession
    ended: asyncio.Task

    async def upload(self, requests, **options):
        content = requests if isinstance(requests, bytes) else lines(requests).encode()
        file = ("in.jsonl", io.BytesIO(content))
        return await self.sdk.files.create(file=file, purpose="batch", **options)

    async def submit(self, requests, *, endpoint=CHAT, window="24h", **options):
        file = await self.upload(requests)
        return await self.sdk.batches.create(
            input_file_id=file.id, endpoint=endpoint, completion_window=window, **options
        )

    async def until(self, batch, condition, timeout_s=WITHIN_S):
        """Poll the batch until the condition holds of it."""
        async with asyncio.timeout(timeout_s):
            while not condition(found := await self.sdk.batches.retrieve(batch.id)):  # noqa: ASYNC110  # it is polled
                await asyncio.sleep(0.02)
        return found

    async def until_ended(self, batch, timeout_s=WITHIN_S):
        return await self.until(batch, lambda found: found.status in ENDED, timeout_s)

    async def until_job(self, batch, condition, timeout_s=WITHIN_S):
        """As `until`, of the job that the batch is."""
        async with asyncio.timeout(timeout_s):
            while not condition(found := (await self.ask("GET", f"/jobs/{batch.id}"))[1]):  # noqa: ASYNC110  # it is polled
                await asyncio.sleep(0.02)
        return found

    async def lines(self, file_id):
        """A made file, line by line; nothing where there is none."""
        if file_id is None:
            return []
        text = (await self.sdk.files.content(file_id)).content.decode()
        return [json.loads(line) for line in text.split("\n")[:-1]]

    async def outcomes(self, batch):
        """custom_id -> error code, None for a success. Every id must be there once."""
        found = [*await self.lines(batch.output_file_id), *await self.lines(batch.error_file_id)]
        codes = {line["custom_id"]: line["error"] and line["error"]["code"] for line in found}
        assert len(codes) == len(found)
        return codes

    async def ask(self, method, path, **options):
        """A route of our own: the status and what it answered."""
        async with self.http.request(method, self.url + path, **options) as response:
            return response.status, json.loads(await response.read())

    async def kill(self):
        """End at once, as near to a kill as a process can come to one of its own parts."""
        self.service.request_stop()
        self.service.request_stop()
        await asyncio.wait_for(self.ended, WITHIN_S)


@asynccontextmanager
async def serving(directory, *servers, **settings):
    """A service on a storage directory, until the context is left."""
    overrides = {
        "servers": [server.url for server in servers],
        "storage": {"url": str(directory)},
        "api": {"port": 0},
        "results": {"sync_s": 0.02},
        "queue": {"shard_size": 16},
        "dispatch": {"drain_s": 0.5},
        **settings,
    }
    service = Service(load_config(None, overrides, {}))
    ended = asyncio.create_task(service.run())
    async with asyncio.timeout(WITHIN_S):
        while service.address is None:
            assert not ended.done(), ended.exception()
            await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{service.address[1]}"
    try:
        async with (
            AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk,
            aiohttp.ClientSession() as http,
        ):
            yield Stage(service, url, sdk, http, ended)
    finally:
        service.request_stop()
        service.request_stop()
        await asyncio.wait_for(ended, WITHIN_S)


__all__ = ["Stage", "rows", "serving"]

"""A real Prometheus and a real Alertmanager on loopback, as tests start them."""

import asyncio
import os
import shutil
from contextlib import asynccontextmanager

import aiohttp
import pytest
import yaml
from vllm_fleet import free_port


def tool(name):
    """Where a program is; without it the test skips, or fails where nothing may skip."""
    path = shutil.which(name)
    if path is None:
        required = os.environ.get("DISPATCHER_REQUIRE_SERVICES") == "1"
        (pytest.fail if required else pytest.skip)(
            f"{name} is not installed (apt-get install prometheus prometheus-alertmanager)"
        )
    return path


class Prometheus:
    """Asked over its HTTP API."""

    def __init__(self, url, http):
        self.url, self._http = url, http

    async def get(self, path, **params):
        async with self._http.get(f"{self.url}/api/v1/{path}", params=params) as answer:
            told = await answer.json()
            assert told["status"] == "success", told
            return told["data"]

    async def query(self, expr):
        """The series of an instant query."""
        return (await self.get("query", query=expr))["result"]

    async def until(self, expr, within_s=30.0):
        """Wait until an expression has a series."""
        async with asyncio.timeout(within_s):
            while not (found := await self.query(expr)):  # noqa: ASYNC110  # it is polled
                await asyncio.sleep(0.2)
        return found


@asynccontextmanager
async def watching(directory, http, scrapes, rules, webhook):
    """A Prometheus that scrapes and evaluates every second, with an Alertmanager that tells a webhook."""
    alerts, port = free_port(), free_port()
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alerts}"]}]}]},
        "scrape_configs": scrapes,
    }
    routes = {
        "route": {"receiver": "hook", "group_wait": "1s", "group_interval": "1s", "group_by": ["alertname"]},
        "receivers": [{"name": "hook", "webhook_configs": [{"url": webhook}]}],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    (directory / "alertmanager.yml").write_text(yaml.safe_dump(routes))
    manager = _running(
        directory,
        "prometheus-alertmanager",
        f"--config.file={directory}/alertmanager.yml",
        f"--storage.path={directory}/alerts",
        f"--web.listen-address=127.0.0.1:{alerts}",
        "--cluster.listen-address=",
    )
    server = _running(
        directory,
        "prometheus",
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/series",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    async with manager, server:
        for address in (alerts, port):
            await _ready(http, f"http://127.0.0.1:{address}/-/ready")
        yield Prometheus(f"http://127.0.0.1:{port}", http)


@asynccontextmanager
async def _running(directory, name, *argv):
    with (directory / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(tool(name), *argv, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _ready(http, url):
    async with asyncio.timeout(20):
        while True:
            try:
                async with http.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)

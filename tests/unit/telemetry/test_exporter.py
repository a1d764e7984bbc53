"""The metrics over HTTP."""

import re
import socket
from contextlib import closing

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.errors import ConfigError
from dispatcher.telemetry.exporter import serve_metrics

HOST = "127.0.0.1"


@pytest.fixture
def registry():
    registry = CollectorRegistry()
    Counter("rows_total", "Rows.", registry=registry).inc(3)
    return registry


async def get(port, path):
    async with aiohttp.ClientSession() as session, session.get(f"http://{HOST}:{port}{path}") as response:
        return response.status, response.headers["Content-Type"], await response.text()


async def test_metrics_are_served_in_the_text_format_of_prometheus(registry):
    async with serve_metrics(registry, 0, HOST) as port:
        status, content_type, text = await get(port, "/metrics")
    assert status == 200
    assert re.match(r"text/plain; version=[\d.]+; charset=utf-8", content_type)
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert [(sample.name, sample.value) for sample in samples] == [("rows_total", 3)]


async def test_health_is_served_and_nothing_else(registry):
    async with serve_metrics(registry, 0, HOST) as port:
        assert (await get(port, "/healthz"))[::2] == (200, "ok\n")
        assert (await get(port, "/"))[0] == 404


async def test_the_port_is_free_again_at_the_end(registry):
    async with serve_metrics(registry, 0, HOST) as port:
        pass
    async with serve_metrics(registry, port, HOST) as again:
        assert again == port


async def test_a_port_in_use_is_a_fault_of_its_setting(registry):
    with closing(socket.create_server((HOST, 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^telemetry.metrics_port: {port} on {HOST} is in use$"):
            await serve_metrics(registry, port, HOST).__aenter__()


async def test_a_host_that_is_not_ours_is_a_fault_of_its_setting(registry):
    for host in ("192.0.2.1", "256.0.0.1"):  # one reserved for documentation (RFC 5737), one that is none
        with pytest.raises(
            ConfigError, match=f"^telemetry.metrics_host: {host} is no address of this machine$"
        ):
            await serve_metrics(registry, 0, host).__aenter__()


async def test_who_is_to_be_asked_first_is_asked_at_each_scrape(registry):
    rows = Counter("asked_total", "Scrapes.", registry=registry)

    async def refresh():
        rows.inc()

    async with serve_metrics(registry, 0, HOST, refresh) as port:
        for number in (1, 2):
            assert f"asked_total {number}.0" in (await get(port, "/metrics"))[2]

"""Every failure from the field is met twice: directly, and behind a proxy environment."""

import asyncio

import pytest
from failure_stage import Stage
from name_server import NameServer

from dispatcher.app import sources
from dispatcher.discovery import resolver


@pytest.fixture
def stage(tmp_path) -> Stage:
    """A stage in a fresh directory."""
    return Stage(tmp_path)


@pytest.fixture
async def names(monkeypatch):
    """A name server that the jobs of this test ask, often."""
    async with NameServer() as server:
        system = resolver.SystemResolver
        monkeypatch.setattr(resolver, "SystemResolver", lambda: system(server.getaddrinfo, server.resolver))
        monkeypatch.setattr(sources, "LOOK_EVERY_S", 0.2)
        yield server


@pytest.fixture(params=["direct", "behind a proxy environment"], autouse=True)
async def environment(request, monkeypatch):
    """Everything happens twice: as it is, and with a proxy in the environment that must see nothing."""
    if request.param == "direct":
        yield
        return
    seen = []

    async def answer(reader, writer):
        seen.append(await reader.read(1000))
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    proxy = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    yield
    proxy.close()
    assert seen == [], "the proxy of the environment was asked"

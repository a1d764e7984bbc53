import aiohttp
import pytest

from dispatcher.testing import FakeServer


@pytest.fixture
async def client():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        yield session


@pytest.fixture
async def server():
    async with FakeServer() as fake:
        yield fake

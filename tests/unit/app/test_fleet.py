import asyncio
from contextlib import suppress

from prometheus_client import CollectorRegistry

from dispatcher.app.fleet import open_fleet
from dispatcher.app.sources import Source
from dispatcher.config import load_config
from dispatcher.telemetry.metrics import Metrics


class Deaf:
    """A source whose library swallows the first cancellation, as some do at an unlucky moment."""

    problem = None

    async def watch(self, _clock, _interval_s):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        await asyncio.sleep(3600)
        yield []


async def test_a_fleet_closes_also_where_a_source_loses_its_cancellation():
    config = load_config(None, {"servers": ["http://127.0.0.1:9"]}, {})
    changing = [Source("deaf", watched=Deaf())]
    async with asyncio.timeout(20):
        async with open_fleet(config, Metrics(CollectorRegistry()), changing=changing):
            await asyncio.sleep(0.05)

"""The simulated store keeps the contract of `ports.Store`."""

import asyncio
import time
from random import Random

import pytest
from store_contract import StoreContract

from dispatcher.app.clock import SystemClock
from dispatcher.errors import StorageError
from dispatcher.storage.patience import Patience
from dispatcher.testing.simulation.ledger import Ledger
from dispatcher.testing.simulation.nodes.scenario import Trouble
from dispatcher.testing.simulation.nodes.store import Objects, StoreLink
from dispatcher.testing.simulation.nodes.weather import Weather
from dispatcher.testing.simulation.nodes.wire import Wire


def at_once(_delay_s, act):
    asyncio.get_running_loop().call_soon(act)


def link(patience_s=0.0):
    weather = Weather((), 1, Ledger(lambda: 0.0), None, lambda _trouble: None)
    wire = Wire(
        weather,
        0,
        at_once,
        Random(1),
        (0.0, 0.0),
        cut=Trouble.NO_STORE,
        deaf=Trouble.STORE_DEAF,
        lost=lambda: StorageError("lost"),
    )
    return weather, StoreLink(Objects(time.time), wire, Patience("it", SystemClock(), Random(1), patience_s))


@pytest.fixture
def store():
    return link()[1]


class TestSimulatedStore(StoreContract):
    pass


async def test_while_the_store_is_cut_off_nothing_is_done():
    weather, store = link()
    weather.links[0].wrong[Trouble.NO_STORE] += 1
    with pytest.raises(StorageError, match="lost"):
        await store.put("journals/x", b"1")
    weather.links[0].mended(Trouble.NO_STORE)
    assert await store.find("journals/x") is None


async def test_an_answer_that_is_lost_is_of_what_was_done():
    weather, store = link()
    weather.links[0].wrong[Trouble.STORE_DEAF] += 1
    with pytest.raises(StorageError, match="lost"):
        await store.put("journals/x", b"1")
    weather.links[0].mended(Trouble.STORE_DEAF)
    assert await store.read("journals/x") == b"1"

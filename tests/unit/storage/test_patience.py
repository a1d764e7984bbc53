import asyncio
from random import Random

import pytest
from structlog.testing import capture_logs
from virtual_loop import VirtualLoop

from dispatcher.errors import StorageError, UnavailableError
from dispatcher.storage.patience import Patience


class LoopClock:
    def now(self):
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)


class Store:
    """Refuses until a time."""

    def __init__(self, clock, until, error=UnavailableError):
        self.clock, self.until, self.error, self.requests = clock, until, error, []

    async def request(self):
        self.requests.append(self.clock.now())
        if self.clock.now() < self.until:
            raise self.error("s3://b/k: 503")
        return "done"


def in_virtual_time(coroutine):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)


def test_a_request_is_sent_again_with_jitter_until_the_store_answers():
    async def scene():
        clock = LoopClock()
        patience, store = Patience("s3://b", clock, Random(1)), Store(clock, until=10)
        assert await patience.keep_trying(store.request) == "done"
        pauses = [later - sooner for sooner, later in zip(store.requests, store.requests[1:], strict=False)]
        assert 4 <= len(pauses) <= 40
        assert all(pause <= 5 for pause in pauses)
        assert len(set(pauses)) == len(pauses)

    in_virtual_time(scene())


def test_after_the_patience_the_last_error_is_raised():
    async def scene():
        clock = LoopClock()
        patience, store = Patience("s3://b", clock, Random(2), patience_s=30), Store(clock, until=1e9)
        with pytest.raises(UnavailableError, match="503"):
            await patience.keep_trying(store.request)
        assert 25 <= clock.now() <= 30

    in_virtual_time(scene())


def test_what_another_try_cannot_help_is_not_tried_again():
    async def scene():
        clock = LoopClock()
        patience, store = Patience("s3://b", clock, Random(3)), Store(clock, until=1, error=StorageError)
        with pytest.raises(StorageError):
            await patience.keep_trying(store.request)
        assert store.requests == [0.0]
        assert patience.obstacle is None

    in_virtual_time(scene())


def test_an_outage_is_an_obstacle_after_5_s_and_logged_once_however_many_requests_fail():
    async def scene():
        clock = LoopClock()
        patience, store = Patience("s3://b", clock, Random(4)), Store(clock, until=20)
        asking = [asyncio.create_task(patience.keep_trying(store.request)) for _ in range(10)]
        await asyncio.sleep(4.9)
        assert patience.obstacle is None
        await asyncio.sleep(5.2)
        assert patience.obstacle == "s3://b/k: 503"
        await asyncio.gather(*asking)
        assert patience.obstacle is None

    with capture_logs() as logs:
        in_virtual_time(scene())
    assert [entry["event"] for entry in logs] == ["store_unavailable", "store_available"]


def test_hiccups_are_not_logged():
    async def scene():
        clock = LoopClock()
        patience, store = Patience("s3://b", clock, Random(5)), Store(clock, until=1)
        await patience.keep_trying(store.request)

    with capture_logs() as logs:
        in_virtual_time(scene())
    assert logs == []

"""Hears what other processes announce on PostgreSQL, over a connection of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import structlog

from dispatcher.config import QueueUrl
from dispatcher.errors import ConfigError
from dispatcher.model import JobId
from dispatcher.queue.postgresql import CHANNEL, connect
from dispatcher.queue.transactions import News, Topic

PAUSE_S, PAUSE_S_MAX = 0.5, 15.0
"""Between two tries to connect, doubled each time. Whoever waits asks by itself meanwhile."""
LOOK_S = 15.0
"""How often the connection is tried: one whose other end has vanished says nothing."""
FAILURES = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)


@asynccontextmanager
async def listening(url: QueueUrl, heard: Callable[[News | None], None]) -> AsyncIterator[None]:
    """Call `heard` with each announcement, and with None where some may have been missed."""
    task = asyncio.create_task(_Listener(url, heard).run(), name="queue listener")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def read_news(payload: str) -> News | None:
    """An announcement; None where it is one of a newer dispatcher's."""
    topic, _, job = payload.partition(":")
    try:
        return News(Topic(topic), JobId(job) if job else None)
    except ValueError:
        return None


class _Listener:
    def __init__(self, url: QueueUrl, heard: Callable[[News | None], None]) -> None:
        self._url = url
        self._heard = heard
        self._log = structlog.get_logger("dispatcher.queue")

    async def run(self) -> None:
        pause_s = PAUSE_S
        while True:
            if await self._listen():
                pause_s = PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _listen(self) -> bool:
        """Listen until the connection breaks. False where there was none."""
        try:
            connection = await connect(self._url)
        except (*FAILURES, ConfigError) as error:
            self._log.debug("queue_not_heard", error=type(error).__name__)  # transactions say so aloud
            return False
        broken = asyncio.Event()
        connection.add_termination_listener(lambda _connection: broken.set())
        try:
            await connection.add_listener(CHANNEL, self._told)
            self._heard(None)
            while not broken.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await broken.wait()
                    continue
                await connection.fetchval("SELECT 1")
        except FAILURES as error:
            self._log.debug("queue_not_heard", error=type(error).__name__)
        finally:
            connection.terminate()
        return True

    def _told(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        if (news := read_news(str(payload))) is not None:
            self._heard(news)

"""A service's place on the list of those that work on a shared queue: it says that it lives."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import structlog

from dispatcher.errors import QueueError, StateError, StoppedError, StorageError
from dispatcher.ports import Clock
from dispatcher.queue.nodes import NodeFigures, NodeIdentity, NodeRecord, Nodes, NodeState

LOOK_S = 1.0
"""Between two looks whether the service before is gone."""
BEAT_S = 2.0
"""Between two heartbeats where others look at what they tell."""
GRACE_S = 5.0
"""How much longer than its silence may last one that lives is waited for."""


class Attendance:
    """A service's place on the list of nodes.

    Args:
        silence_s: After so long without a heartbeat a service is taken for dead. It sends three in that time.
        figures: What each heartbeat tells.
        displaced: Called once where another service has taken this one for dead, and its place.
    """

    def __init__(
        self,
        nodes: Nodes,
        identity: NodeIdentity,
        clock: Clock,
        silence_s: float,
        figures: Callable[[], NodeFigures],
        displaced: Callable[[], None],
    ) -> None:
        self._nodes = nodes
        self._identity = identity
        self._clock = clock
        self._silence_s = silence_s
        self._figures = figures
        self._displaced = displaced
        self._log = structlog.get_logger("dispatcher.service")

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Be the only service while the context is open. One that has died is waited for, until that is sure.

        Raises StateError where another one lives, StoppedError where the figures say `draining` meanwhile.
        """
        await self._nodes.register(self._identity)
        try:
            await self._wait_for_others()
            async with self._beating(alone=True):
                yield
        finally:
            await self._leave()

    @asynccontextmanager
    async def among_others(self) -> AsyncIterator[None]:
        """Be one of several while the context is open; at its end what this one holds is free."""
        await self._nodes.register(self._identity)
        try:
            async with self._beating(alone=False):
                yield
        finally:
            await self._leave()

    @asynccontextmanager
    async def _beating(self, *, alone: bool) -> AsyncIterator[None]:
        beating = asyncio.create_task(self._beat(alone=alone), name="heartbeat")
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.wait([beating])

    async def _wait_for_others(self) -> None:
        deadline = self._clock.now() + self._silence_s + GRACE_S
        said = False
        while living := self._ahead(await self._nodes.list()):
            one = living[0].identity
            if self._clock.now() >= deadline:
                raise StateError(
                    f"another service is at work on this queue: process {one.pid} on {one.host}, "
                    f"heard of {living[0].silent_s:.0f} s ago. Stop it, or give this one another queue.url"
                )
            if not said:
                said = True
                self._log.info("queue_taken", host=one.host, pid=one.pid, advice="waiting for its end")
            await self._clock.sleep(LOOK_S)
            if self._figures().state is NodeState.DRAINING:
                raise StoppedError("stopped while another service was at work on the queue")
            await self._nodes.heartbeat(self._identity.id, self._figures())
        for each in await self._nodes.list():
            if each.identity.id != self._identity.id and each.silent_s >= self._silence_s:
                await self._nodes.remove(each.identity.id)

    def _ahead(self, nodes: Sequence[NodeRecord]) -> list[NodeRecord]:
        """Those that live and came before us. Those that came after us wait, by the same rule."""
        me = self._identity.id
        ours = next(((each.started_at, me) for each in nodes if each.identity.id == me), (float("inf"), me))
        return [
            each
            for each in nodes
            if each.silent_s < self._silence_s and (each.started_at, each.identity.id) < ours
        ]

    async def _beat(self, *, alone: bool) -> None:
        while True:
            await self._clock.sleep(self._silence_s / 3 if alone else min(BEAT_S, self._silence_s / 3))
            try:
                listed = await self._nodes.heartbeat(self._identity.id, self._figures())
                if not listed and not alone:
                    await self._nodes.register(self._identity)
                elif not listed:
                    self._log.error("queue_taken_over", advice="another service took this one for dead")
                    self._displaced()
                    return
            except (QueueError, StorageError):  # the queue itself has said so
                continue

    async def _leave(self) -> None:
        try:
            await self._nodes.remove(self._identity.id)
        except (QueueError, StorageError):  # our silence says the same
            return

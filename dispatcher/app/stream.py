"""`stream`: requests from an iterator, outcomes to a consumer, nothing on disk."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from dispatcher.app.fleet import Fleet
from dispatcher.dispatch.node import Node
from dispatcher.errors import LeaseLostError, first_of
from dispatcher.model import Job, JobId, Lease, Outcome, Request, Shard
from dispatcher.ports import Review
from dispatcher.queue.memory import MemoryQueue
from dispatcher.results.memory import MemoryRecorder

AHEAD_MAX = 1024
"""Requests taken from the caller's iterator before their outcomes have been taken by the caller."""


class StreamPayloads:
    """`ports.Payloads` of requests that are in memory: each is a shard of its own."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def put(self, request: Request) -> Shard:
        """Keep a request until its outcome has been taken."""
        self._requests[request.index] = request
        return Shard(request.index, request.index, 1, 0, len(request.body))

    def forget(self, index: int) -> None:
        """Its outcome has been taken."""
        del self._requests[index]

    async def read(self, lease: Lease) -> Sequence[Request]:
        """The shard's one request. Raises LeaseLostError where it was forgotten meanwhile."""
        request = self._requests.get(lease.shard.number)
        if request is None:
            raise LeaseLostError(f"request {lease.shard.number} has its outcome already")
        return (request,)


class Stream:
    """One stream over a fleet: iterate `outcomes` once. They come as they are ready, not in order."""

    def __init__(self, fleet: Fleet, requests: AsyncIterator[Request], review: Review | None = None) -> None:
        dispatch = fleet.config.dispatch
        self._fleet = fleet
        self._requests = requests
        self._review = review
        self._job = Job(
            JobId(secrets.token_hex(6)),
            max_attempts=dispatch.max_attempts,
            request_timeout_s=dispatch.request_timeout_s,
        )
        self._queue = MemoryQueue(fleet.clock, fleet.config.queue.lease_s)
        self._payloads = StreamPayloads()
        self._recorder = MemoryRecorder(AHEAD_MAX)
        self._room = asyncio.Event()

    async def outcomes(self) -> AsyncGenerator[Outcome, None]:
        """Every request's outcome. Requests are taken no faster than outcomes are, and at most 1,024 ahead.

        What the caller's iterator raises is raised here. Leaving early closes the requests in flight.
        """
        node = self._fleet.node(self._queue, self._payloads, self._recorder, self._review)
        working = asyncio.create_task(self._work(node), name="stream")
        try:
            async with aclosing(self._recorder.outcomes()) as outcomes:
                async for outcome in outcomes:
                    self._payloads.forget(outcome.index)
                    self._room.set()
                    yield outcome
            await working
        finally:
            self._recorder.abandon()
            working.cancel()
            await asyncio.wait([working])

    async def _work(self, node: Node) -> None:
        """Ends with the last outcome taken, with an error of the caller's iterator, or when cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._produce(node), name="stream requests")
                await node.run(until_drained=False)
        except BaseExceptionGroup as group:
            raise first_of(group) from None  # the caller's own error must reach the caller as it is
        finally:
            self._recorder.end()

    async def _produce(self, node: Node) -> None:
        async for request in self._requests:
            self._queue.add(self._job, self._payloads.put(request))
            await self._keep_below(AHEAD_MAX)
        self._queue.close()
        await self._keep_below(1)
        node.stop()

    async def _keep_below(self, most: int) -> None:
        while len(self._payloads) >= most:
            self._room.clear()
            await self._room.wait()

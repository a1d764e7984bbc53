"""The requests that are ready to be sent, in the order in which they should be."""

import heapq
from collections import deque
from collections.abc import Callable, Iterable

from dispatcher.dispatch.item import Item
from dispatcher.pool.server import Server

PASSED_OVER_MAX = 32
"""Retries of one model that are passed over, as this server had them before, until another is tried."""


class Backlog:
    """Fresh requests in input order; retries, which go first; and retries whose time has not come.

    Retries that are suspects wait apart: a server that holds one of them is not given another.
    """

    def __init__(self) -> None:
        self._fresh: dict[str | None, deque[Item]] = {}
        self._retries: dict[str | None, list[Item]] = {}
        self._suspects: dict[str | None, list[Item]] = {}
        self._delayed: list[tuple[float, Item]] = []
        self._count = 0
        self.body_bytes = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, items: Iterable[Item]) -> None:
        """Add fresh requests, in input order."""
        for item in items:
            if item.suspect:  # an earlier run says so
                self._retry(item)
            else:
                self._fresh.setdefault(item.request.model, deque()).append(item)
            self._note(item, 1)

    def put_back(self, item: Item, not_before: float, now: float) -> None:
        """Add a request that is to be sent again."""
        if not_before > now:
            heapq.heappush(self._delayed, (not_before, item))
        else:
            self._retry(item)
        self._note(item, 1)

    def wake(self, now: float) -> None:
        """Make the delayed requests ready whose time has come."""
        while self._delayed and self._delayed[0][0] <= now:
            self._retry(heapq.heappop(self._delayed)[1])

    def take(
        self, server: Server, has_elsewhere: Callable[[Item], bool], *, suspects: bool = True
    ) -> Item | None:
        """The first request for this server: retries before new work, then in order.

        A request that the server answered doubtfully before is passed over while it `has_elsewhere` to go;
        without `suspects`, so is every suspect.
        """
        item = (
            (_take_retry(self._suspects, server, has_elsewhere) if suspects else None)
            or _take_retry(self._retries, server, has_elsewhere)
            or self._take_fresh(server)
        )
        if item is not None:
            self._note(item, -1)
        return item

    def discard(self, gone: Callable[[Item], bool]) -> None:
        """Remove these requests, wherever they wait: their lease was lost."""
        for queue in [*self._fresh.values(), *self._retries.values(), *self._suspects.values()]:
            kept = [item for item in queue if not self._dropped(item, gone)]
            queue.clear()
            queue.extend(kept)
        for retries in [*self._retries.values(), *self._suspects.values()]:
            heapq.heapify(retries)
        self._delayed = [pair for pair in self._delayed if not self._dropped(pair[1], gone)]
        heapq.heapify(self._delayed)

    def models(self) -> set[str | None]:
        """The models that the waiting requests want."""
        queues = [*self._fresh.items(), *self._retries.items(), *self._suspects.items()]
        return {model for model, queue in queues if queue} | {item.request.model for _, item in self._delayed}

    def ready(self) -> bool:
        """Whether anything could be sent now, were there a server for it."""
        return self._count > len(self._delayed)

    def _retry(self, item: Item) -> None:
        heaps = self._suspects if item.suspect else self._retries
        heapq.heappush(heaps.setdefault(item.request.model, []), item)

    def _dropped(self, item: Item, gone: Callable[[Item], bool]) -> bool:
        if not gone(item):
            return False
        self._note(item, -1)
        return True

    def _note(self, item: Item, sign: int) -> None:
        self._count += sign
        self.body_bytes += sign * len(item.request.body)

    def _take_fresh(self, server: Server) -> Item | None:
        queues = [queue for model, queue in self._fresh.items() if queue and server.serves(model)]
        if not queues:
            return None
        first = min(queues, key=lambda queue: queue[0]) if len(queues) > 1 else queues[0]
        return first.popleft()


def _take_retry(
    retries: dict[str | None, list[Item]], server: Server, has_elsewhere: Callable[[Item], bool]
) -> Item | None:
    heaps = [heap for model, heap in retries.items() if heap and server.serves(model)]
    for heap in sorted(heaps):
        if (item := _first_fit(heap, server, has_elsewhere)) is not None:
            return item
    return None


def _first_fit(heap: list[Item], server: Server, has_elsewhere: Callable[[Item], bool]) -> Item | None:
    passed: list[Item] = []
    found = None
    while heap and found is None and len(passed) < PASSED_OVER_MAX:
        item = heapq.heappop(heap)
        if server.spec.id in item.tried and has_elsewhere(item):
            passed.append(item)
        else:
            found = item
    for item in passed:
        heapq.heappush(heap, item)
    return found

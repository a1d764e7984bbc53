"""The requests that are ready to be sent, in the order in which they should be."""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum, auto
from typing import TypeVar

from dispatcher.dispatch.hints import tokens_max
from dispatcher.dispatch.item import Item
from dispatcher.dispatch.shares import Rank, Shares
from dispatcher.model import JobId
from dispatcher.pool.server import Server

PASSED_OVER_MAX = 32
"""Retries of one kind that are passed over, as this server had them before, until another is tried."""

Kind = tuple[str | None, JobId]
"""What a request is to a server: its model, and the job, which may have a limit."""
Heaps = dict[Kind, list[Item]]
Queue = TypeVar("Queue", list[Item], deque[Item])


class Room(Enum):
    """What a server has room for, where suspects are concerned."""

    NONE = auto()
    COMPANY = auto()  # for one that may run beside another
    EMPTY = auto()  # it holds no suspect


class Backlog:
    """Fresh requests, jobs by turns and each in input order; retries, which go first; and delayed retries.

    Retries that are suspects wait apart, for a server with room for one, and those that are to run without
    another wait ahead of them: while one waits, its servers are given no other suspect, or it would never
    meet an empty one.
    """

    def __init__(self, held_back: AbstractSet[JobId] = frozenset()) -> None:
        """`held_back` are the jobs of which nothing may be sent, at any time."""
        self._fresh: dict[Kind, deque[Item]] = {}
        self._retries: Heaps = {}
        self._suspects: Heaps = {}
        self._lone: Heaps = {}
        self._held_back = held_back
        self.shares = Shares()
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
                self._fresh.setdefault(_kind(item), deque()).append(item)
                self.shares.came(item.lease.job)
            self._note(item, 1)

    def put_back(self, item: Item, not_before: float, now: float) -> None:
        """Add a request that is to be sent again."""
        if not_before > now:
            heapq.heappush(self._delayed, (not_before, item))
        else:
            self._retry(item)
        self._note(item, 1)

    def fresh_by_lease(self) -> Counter[int]:
        """How many requests of each lease, by its identity, have not been sent."""
        return Counter(id(item.lease) for queue in self._fresh.values() for item in queue)

    def wake(self, now: float) -> None:
        """Make the delayed requests ready whose time has come."""
        while self._delayed and self._delayed[0][0] <= now:
            self._retry(heapq.heappop(self._delayed)[1])

    def take(
        self, server: Server, has_elsewhere: Callable[[Item], bool], room: Room = Room.EMPTY
    ) -> Item | None:
        """The first request for this server: suspects for which it has `room`, other retries, new work.

        A request that the server answered doubtfully, or died of, before is passed over while it
        `has_elsewhere` to go.
        """
        item = (
            self._take_suspect(server, has_elsewhere, room)
            or self._take_retry(self._retries, server, has_elsewhere)
            or self._take_fresh(server)
        )
        if item is not None:
            self._note(item, -1)
        return item

    def discard(self, gone: Callable[[Item], bool]) -> list[Item]:
        """Remove these requests, wherever they wait, and return them."""
        dropped: list[Item] = []
        for (_, job), queue in self._fresh.items():
            self.shares.dropped(job, self._thin(queue, gone, dropped))
        for heap in self._heaps():
            self._thin(heap, gone, dropped)
            heapq.heapify(heap)
        self._fresh = {kind: queue for kind, queue in self._fresh.items() if queue}  # jobs come and go
        self._delayed = [pair for pair in self._delayed if not self._dropped(pair[1], gone, dropped)]
        heapq.heapify(self._delayed)
        return dropped

    def sort_again(self) -> None:
        """Some of those that wait have come under suspicion, or are out of it."""
        waiting = [item for heap in self._heaps() for item in heap]
        self._retries, self._suspects, self._lone = {}, {}, {}
        for item in waiting:
            self._retry(item)

    def longest_first(self) -> None:
        """Nothing more will come: begin with those that may take the longest, where bodies say so."""
        for queue in self._fresh.values():
            ordered = sorted(queue, key=lambda item: -tokens_max(item.request))
            queue.clear()
            queue.extend(ordered)

    def models(self) -> set[str | None]:
        """The models that the waiting requests want."""
        fresh = {model for (model, _), queue in self._fresh.items() if queue}
        retries = {heap[0].request.model for heap in self._heaps() if heap}
        return fresh | retries | {item.request.model for _, item in self._delayed}

    def ready(self) -> bool:
        """Whether anything could be sent now, were there a server for it."""
        return self._count > len(self._delayed)

    def suspects_only(self) -> int:
        """How many suspects wait where nothing else does; 0 where other work is ready."""
        suspects = sum(len(heap) for heap in [*self._suspects.values(), *self._lone.values()])
        return suspects if suspects == self._count - len(self._delayed) else 0

    def _heaps(self) -> list[list[Item]]:
        return [*self._retries.values(), *self._suspects.values(), *self._lone.values()]

    def _retry(self, item: Item) -> None:
        heaps = self._lone if item.lone else self._suspects if item.suspect else self._retries
        heapq.heappush(heaps.setdefault(_kind(item), []), item)

    def _take_suspect(self, server: Server, has_elsewhere: Callable[[Item], bool], room: Room) -> Item | None:
        item = self._take_retry(self._lone, server, has_elsewhere) if room is Room.EMPTY else None
        if item is not None or room is Room.NONE or self._first_fit_waits(server, has_elsewhere):
            return item
        return self._take_retry(self._suspects, server, has_elsewhere)

    def _first_fit_waits(self, server: Server, has_elsewhere: Callable[[Item], bool]) -> bool:
        heads = [heap[0] for heap in self._fitting(self._lone, server)]
        return any(not (head.avoids(server.spec.id) and has_elsewhere(head)) for head in heads)

    def _take_retry(self, heaps: Heaps, server: Server, has_elsewhere: Callable[[Item], bool]) -> Item | None:
        for heap in sorted(self._fitting(heaps, server)):
            if (item := _first_fit(heap, server, has_elsewhere)) is not None:
                return item
        return None

    def _thin(
        self, queue: list[Item] | deque[Item], gone: Callable[[Item], bool], dropped: list[Item]
    ) -> int:
        kept = [item for item in queue if not self._dropped(item, gone, dropped)]
        count = len(queue) - len(kept)
        queue.clear()
        queue.extend(kept)
        return count

    def _dropped(self, item: Item, gone: Callable[[Item], bool], dropped: list[Item]) -> bool:
        if not gone(item):
            return False
        self._note(item, -1)
        dropped.append(item)
        return True

    def _note(self, item: Item, sign: int) -> None:
        self._count += sign
        self.body_bytes += sign * len(item.request.body)

    def _take_fresh(self, server: Server) -> Item | None:
        queues = self._fitting(self._fresh, server)
        if not queues:
            return None
        first = min(queues, key=self._turn) if len(queues) > 1 else queues[0]
        item = first.popleft()
        self.shares.took(item.lease.job.id)
        if not first:  # jobs come and go
            del self._fresh[_kind(item)]
        return item

    def _turn(self, queue: deque[Item]) -> tuple[Rank, int]:
        return self.shares.rank(queue[0].lease.job.id), queue[0].order

    def _fitting(self, waiting: Mapping[Kind, Queue], server: Server) -> list[Queue]:
        """Those of the queues that hold something for this server."""
        return [
            queue
            for (model, job), queue in waiting.items()
            if queue and server.serves(model) and job not in self._held_back
        ]


def _kind(item: Item) -> Kind:
    return item.request.model, item.lease.job.id


def _first_fit(heap: list[Item], server: Server, has_elsewhere: Callable[[Item], bool]) -> Item | None:
    passed: list[Item] = []
    found = None
    while heap and found is None and len(passed) < PASSED_OVER_MAX:
        item = heapq.heappop(heap)
        if item.avoids(server.spec.id) and has_elsewhere(item):
            passed.append(item)
        else:
            found = item
    for item in passed:
        heapq.heappush(heap, item)
    return found

"""Which ready request goes to which server: it needs a permit there, and a reason not to wait for another."""

import heapq
from collections.abc import Callable, Iterator
from functools import partial

from dispatcher.dispatch.backlog import Backlog, Room
from dispatcher.dispatch.item import Item
from dispatcher.dispatch.quarantine import Quarantine
from dispatcher.model import ServerId
from dispatcher.pool.pool import Pool
from dispatcher.pool.server import Server


class Pairing:
    """Pairs what is ready with the servers that have permits for jobs. Times are monotonic seconds.

    It goes through all servers only when it is told to `look`; else it knows of each permit that was `freed`.
    """

    def __init__(self, pool: Pool, backlog: Backlog, quarantine: Quarantine) -> None:
        self._pool = pool
        self._backlog = backlog
        self._quarantine = quarantine
        self._roomy: dict[ServerId, Server] = {}
        """Servers that may have permits: no other one has."""

    def look(self) -> int:
        """Permits may have come up at any server in rotation. Returns how many of them there are."""
        self._roomy = {server.spec.id: server for server in self._pool.active()}
        return len(self._roomy)

    def freed(self, server: Server) -> None:
        """There may be a permit for a job at this server."""
        self._roomy[server.spec.id] = server

    def pairs(self, now: float, may_send: Callable[[], bool]) -> Iterator[tuple[Item, Server]]:
        """The pairs, one after the other, while `may_send`: the server with the largest free share first.

        Each item is out of the backlog; its permit is to be taken before the next pair is asked for.
        """
        has_elsewhere = partial(self._has_elsewhere, now=now)
        shares = [(-server.free_share(now), server.spec.id) for server in self._with_permits(now)]
        heapq.heapify(shares)
        while shares and self._backlog.ready() and may_send():
            server = self._roomy[shares[0][1]]
            item = self._backlog.take(server, has_elsewhere, self._quarantine.room(server, now))
            if item is None:
                heapq.heappop(shares)
                continue
            yield item, server
            if server.permits_for_jobs(now) > 0:
                heapq.heapreplace(shares, (-server.free_share(now), server.spec.id))
            else:
                heapq.heappop(shares)

    def _with_permits(self, now: float) -> list[Server]:
        self._roomy = {id_: server for id_, server in self._roomy.items() if server.permits_for_jobs(now) > 0}
        return list(self._roomy.values())

    def _has_elsewhere(self, item: Item, now: float) -> bool:
        """Whether another server may have it: one that has room now, unless some have answered it doubtfully.

        A second opinion is worth a wait. Another server's death would say more than the same one's, but where
        the others are full, all that ran at a large server would wait for a small one.
        """
        others = (server for server in self._pool.active() if not item.avoids(server.spec.id))
        able = (server for server in others if server.serves(item.request.model))
        return any(bool(item.tried) or self._has_room(server, now) for server in able)

    def _has_room(self, server: Server, now: float) -> bool:
        return server.permits_free(now) > 0 and self._quarantine.room(server, now) is not Room.NONE

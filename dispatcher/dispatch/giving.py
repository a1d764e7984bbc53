"""The end of the work: a node that has more ready than it can send leaves shards to those that have nothing.

The queue gives out whole shards, and a node holds some ahead. When the queue is dry, what one holds and has
not begun is what another stands idle for.
"""

from collections.abc import Sequence

from dispatcher.dispatch.desk import Desk
from dispatcher.dispatch.settling import Settling
from dispatcher.dispatch.shards import ShardInHand

LEFT_S = 2.0
"""So long a node that has given something back takes nothing from the queue: the hungry ask every second."""


def to_give(unbegun: Sequence[ShardInHand], ready: int, hungry: int) -> list[ShardInHand]:
    """Which shards to give, the last first: about as many rows as make equal shares of what is ready.

    Args:
        unbegun: Shards of which every request is ready, in the order in which they were leased.
        ready: Requests that are ready, those of other shards included.
        hungry: How many other nodes have nothing.
    """
    fair = ready * hungry / (hungry + 1)
    given: list[ShardInHand] = []
    for shard in reversed(unbegun):
        rows = sum(each.owed for each in given)
        if rows + shard.owed / 2 > fair:
            break
        given.append(shard)
    return given


class Giving:
    """Lets a node's unbegun shards go to others. Times are monotonic seconds."""

    def __init__(self, desk: Desk, settling: Settling) -> None:
        self._desk = desk
        self._settling = settling
        self._until = float("-inf")

    def give(self, hungry: int, now: float) -> int:
        """So many other nodes have nothing: leave them a part of what is ready here. Returns the shards."""
        if not hungry or self._desk.closed or self.leaves_the_queue(now):
            return 0  # what was given a moment ago may not be found yet
        given = to_give(self._desk.unbegun(), len(self._desk.backlog), hungry)
        if given:
            self._until = now + LEFT_S
            self._desk.let_go(given)
            for shard in given:
                self._settling.look_at(shard)
        return len(given)

    def leaves_the_queue(self, now: float) -> bool:
        """Whether what is in the queue is for others: this node gave it back a moment ago."""
        return now < self._until

"""Live requests that wait for a permit, in the order in which they are to have one."""

from collections import OrderedDict
from collections.abc import Callable

from dispatcher.model import Break, ServerId
from dispatcher.pool.server import Server


class LiveAttempt:
    """One sending of a live request, from the permit it took to its end."""

    __slots__ = ("close", "given_up", "model", "repeated", "sent_at", "server")

    def __init__(self, server: Server, model: str | None, sent_at: float) -> None:
        self.server = server
        self.model = model
        self.sent_at = sent_at
        self.given_up: Break | None = None
        """How it is to end, if we closed it ourselves."""
        self.repeated = False
        """Whether its request has failed at another server before."""
        self.close: Callable[[], object] | None = None
        """Closes it at the server, while it is there."""


class Waiter:
    """A live request that waits for a permit."""

    __slots__ = ("attempt", "avoided", "granted", "model", "turn")

    def __init__(
        self, model: str | None, avoided: frozenset[ServerId], turn: int, granted: Callable[[], None]
    ) -> None:
        self.model = model
        self.avoided = avoided
        self.turn = turn
        self.granted = granted
        """Told once `attempt` holds a permit."""
        self.attempt: LiveAttempt | None = None


class Turns:
    """Who waits, by model, each in order of arrival. A model that nobody waits for has no entry.

    A request that has been sent before, and so avoids a server, goes before those that have not.
    """

    def __init__(self) -> None:
        self._queues: dict[str | None, OrderedDict[Waiter, None]] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __bool__(self) -> bool:
        return bool(self._queues)

    def waits_for(self, model: str | None) -> bool:
        """Whether anybody waits for this model."""
        return model in self._queues

    def join(self, model: str | None, avoided: frozenset[ServerId], granted: Callable[[], None]) -> Waiter:
        """Wait from now on."""
        self._arrivals += 1
        turn = -self._arrivals if avoided else self._arrivals
        waiter = Waiter(model, avoided, turn, granted)
        queue = self._queues.setdefault(model, OrderedDict())
        queue[waiter] = None
        if avoided:
            queue.move_to_end(waiter, last=False)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Wait no more. May be called again."""
        queue = self._queues.get(waiter.model)
        if queue is not None:
            queue.pop(waiter, None)
            if not queue:
                del self._queues[waiter.model]

    def next_for(self, server: Server) -> Waiter | None:
        """The first in turn for whom this server would do."""
        heads = (_first(queue, server) for model, queue in self._queues.items() if server.serves(model))
        fitting = [waiter for waiter in heads if waiter is not None]
        return min(fitting, key=_turn, default=None)


def _first(queue: "OrderedDict[Waiter, None]", server: Server) -> Waiter | None:
    return next((waiter for waiter in queue if server.spec.id not in waiter.avoided), None)


def _turn(waiter: Waiter) -> int:
    return waiter.turn

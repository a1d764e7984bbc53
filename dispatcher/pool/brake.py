"""When soft evidence speaks against most of the pool at once, it is us, or the network: do not believe it."""

from dispatcher.model import ServerId

WITHIN_S = 60.0


class Brake:
    """Allows soft evictions of up to half of the pool within a minute. Times are monotonic seconds."""

    __slots__ = ("_evicted_at",)

    def __init__(self) -> None:
        self._evicted_at: dict[ServerId, float] = {}

    def allows(self, server: ServerId, in_service: int, now: float) -> bool:
        """Whether this server may be evicted on soft evidence, and if so, count it.

        `in_service` is how many servers are in service now, this one included. The first in a minute is
        always allowed: a pool of one is no crowd.
        """
        recent = {id_: at for id_, at in self._evicted_at.items() if now - at < WITHIN_S}
        self._evicted_at = recent
        if recent and 2 * (len(recent) + 1) > in_service + len(recent):
            return False
        recent[server] = now
        return True

"""Who was running when a server died: what stands between the attempts' ends and the blame.

An attempt can break before its server is known to be dead: a reset comes first, the refused probe after it.
Until the server's fate is known such a request is a suspect all the same. And answers that were charged to
requests, but came from a server on its way down, are charged to the server once it is down.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from dispatcher.dispatch.blame import Blame, Casualty, Suspicion
from dispatcher.dispatch.item import Item
from dispatcher.model import ServerId
from dispatcher.pool.effects import Loss

CHARGED_MAX = 1024
"""Charged requests remembered per server: as many as may have been open there when it went down."""
FATE_S = 10.0
"""What broke, or was answered with an error, longer before a server was found dead was not its death: the
server is looked at within half a second of it, and twice more within so long."""
ECHO_S = 0.5
"""A dying engine answers all that it holds: what was sent before such an answer, and is still open so much
later, shows that the engine lived on."""


@dataclass(frozen=True, slots=True)
class Fallen:
    """A request that was running at a server, and for how long it had."""

    item: Item
    exposure_s: float
    at: float = 0.0
    """When its attempt ended; now, while it has not."""
    last_words: bool = True
    """Whether how it ended may have been its server's death."""


@dataclass(slots=True)
class _Rolls:
    broken: list[Fallen] = field(default_factory=list)
    """Requests whose attempts broke in a way that may have been the server's death."""
    charged: deque[Fallen] = field(default_factory=lambda: deque(maxlen=CHARGED_MAX))
    """Requests that were charged after the latest one with a good answer was sent, once a charge and in the
    order of time."""


class Casualties:
    """Keeps, for each server, what its death would mean for whom. Plain state, no clock.

    Only requests without an outcome stand in it, and only servers whose fate is open.
    """

    def __init__(self, blame: Blame) -> None:
        self._blame = blame
        self._rolls: dict[ServerId, _Rolls] = {}

    def broke(self, server: ServerId, fallen: Fallen) -> None:
        """The attempt broke; whether the server is dead is not known yet."""
        fallen.item.accused_at = (*fallen.item.accused_at, server)
        self._rolls.setdefault(server, _Rolls()).broken.append(fallen)

    def charged(self, server: ServerId, fallen: Fallen) -> None:
        """The attempt was charged to the request."""
        self._rolls.setdefault(server, _Rolls()).charged.append(fallen)

    def answered(self, server: ServerId, sent_at: float) -> None:
        """The server gave a good answer to what was sent then: what it had answered by then stands.

        An answer can be on its way, or in our own hands, while its server is dying: it proves no more.
        """
        charged = self._rolls[server].charged if server in self._rolls else None
        while charged and charged[0].at < sent_at:
            charged.popleft()

    def lives(self, server: ServerId) -> None:
        """The server was found alive: what broke there was a connection."""
        for fallen in self._rolls.pop(server, _Rolls()).broken:
            fallen.item.excuse(server)

    def keep(self, known: Callable[[ServerId], bool]) -> None:
        """Forget the servers that have gone for good: nobody will hear of their fate."""
        for server in [server for server in self._rolls if not known(server)]:
            self.lives(server)

    def ended(self, item: Item) -> None:
        """The request has its outcome: nothing speaks against it any more."""
        if item.suspicion is not None and not (item.poison or item.suspicion.excused):
            self._blame.cleared(item.suspicion)
        self._strike(item)

    def dropped(self, item: Item) -> None:
        """The request's lease was lost: what becomes of it is not ours to see."""
        if item.suspicion is not None:
            self._blame.lost_from_sight(item.suspicion)
        self._strike(item)

    def died(self, server: ServerId, running: Collection[Fallen], loss: Loss, now: float) -> list[Item]:
        """The server is lost. Returns its casualties: those that are poison by now, and the new suspects.

        Where nothing broke it was stopped in good order, and nobody is blamed.
        """
        rolls = self._rolls.pop(server, _Rolls())
        for fallen in rolls.charged:
            fallen.item.refund(server)
        for fallen in rolls.broken:
            fallen.item.excuse(server)
        errors = _last_words(rolls.charged, running, now) if loss is Loss.DEAD else []
        broken = [fallen for fallen in (*rolls.broken, *errors) if now - fallen.at <= FATE_S]
        guilty_of_it = [*broken, *running]
        if loss is Loss.OTHER or not (broken or loss is Loss.HUNG) or not guilty_of_it:
            return []
        return self._judge(server, {each.item: each for each in guilty_of_it}.values())

    def _judge(self, server: ServerId, fallen: Collection[Fallen]) -> list[Item]:
        findings = self._blame.died(
            [Casualty(_suspicion(each.item), each.exposure_s, len(each.item.died_at)) for each in fallen]
        )
        for each, finding in zip(fallen, findings, strict=True):
            each.item.died_at = (*each.item.died_at, server)
            each.item.suspicion = finding.suspicion
            each.item.poison = finding.poison
        return [each.item for each in fallen]

    def _strike(self, item: Item) -> None:
        item.suspicion = None
        for server in {*item.accused_at, *item.tried}:
            if rolls := self._rolls.get(server):
                rolls.broken = _without(rolls.broken, item)
                rolls.charged = deque(_without(rolls.charged, item), CHARGED_MAX)
        item.accused_at = ()


def _last_words(charged: Iterable[Fallen], running: Iterable[Fallen], now: float) -> list[Fallen]:
    """The errors with which an engine may have died."""
    oldest_sent_at = min((fallen.at - fallen.exposure_s for fallen in running), default=math.inf)
    return [
        fallen for fallen in charged if fallen.last_words and not oldest_sent_at < fallen.at < now - ECHO_S
    ]


def _suspicion(item: Item) -> Suspicion | None:
    return None if item.suspicion is None or item.suspicion.excused else item.suspicion


def _without(roll: Iterable[Fallen], item: Item) -> list[Fallen]:
    return [fallen for fallen in roll if fallen.item is not item]

"""The troubles of nodes, set to work: what is wrong with each node just now, and when something strikes."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dispatcher.model import ServerId
from dispatcher.testing.simulation.ledger import Ledger
from dispatcher.testing.simulation.nodes.processes import ProcessLoop
from dispatcher.testing.simulation.nodes.scenario import ENDS, Moment, NodeTrouble, Trouble

Strike = Callable[[NodeTrouble], None]
"""Ends or stops the node that is there."""


@dataclass(slots=True)
class Links:
    """What is wrong with the connections of one machine: several troubles may be at work at once."""

    wrong: Counter[Trouble] = field(default_factory=Counter)
    spans: list[tuple[float, float]] = field(default_factory=list)
    """When something was wrong there, or the node was stopped: from when to when."""
    _waiting: "list[asyncio.Future[None]]" = field(default_factory=list)
    """For something to be in order again."""

    def has(self, trouble: Trouble) -> bool:
        """Whether this is wrong now."""
        return self.wrong[trouble] > 0

    def reaches(self, server: ServerId) -> bool:
        """Whether this server can be reached: where some cannot, those are the even ones."""
        return not (self.has(Trouble.NO_SERVERS) and int(server.rpartition("s")[2]) % 2 == 0)

    async def until_reached(self, server: ServerId) -> None:
        """Wait until this server can be reached."""
        while not self.reaches(server):
            mended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(mended)
            await mended

    def mended(self, trouble: Trouble) -> None:
        """One trouble of this kind is over."""
        self.wrong[trouble] -= 1
        waiting, self._waiting = self._waiting, []
        for mended in waiting:
            if not mended.done():
                mended.set_result(None)

    def calm(self, start: float, end: float) -> bool:
        """Whether nothing was wrong in this time."""
        return all(until <= start or since >= end for since, until in self.spans)


class Weather:
    """Lets every trouble happen at its time. What ends or stops a node is for `strike`."""

    def __init__(
        self, troubles: Sequence[NodeTrouble], places: int, ledger: Ledger, loop: ProcessLoop, strike: Strike
    ) -> None:
        self.links = [Links() for _ in range(places)]
        self._armed: list[NodeTrouble] = []
        self._ledger = ledger
        self._loop = loop
        self._strike = strike
        for trouble in troubles:
            loop.outside(trouble.at, lambda trouble=trouble: self._arm(trouble))  # type: ignore[misc]

    def reached(self, place: int, moment: Moment) -> None:
        """The node there does this now."""
        struck = [each for each in self._armed if (each.node, each.moment) == (place, moment)]
        for trouble in struck[:1]:
            self._armed.remove(trouble)
            self._begin(trouble)

    def _arm(self, trouble: NodeTrouble) -> None:
        if trouble.moment is Moment.ANY:
            self._begin(trouble)
        else:
            self._armed.append(trouble)

    def _begin(self, trouble: NodeTrouble) -> None:
        self._ledger.note("trouble", trouble.node, trouble.kind, trouble.moment)
        links, now = self.links[trouble.node], self._loop.time()
        if trouble.kind is not Trouble.DRAINED:  # what ends in good order loses nothing
            links.spans.append((now, now + trouble.seconds))
        if trouble.kind in (*ENDS, Trouble.FROZEN):
            self._strike(trouble)
            return
        links.wrong[trouble.kind] += 1
        self._loop.outside(trouble.seconds, lambda: self._end(trouble))

    def _end(self, trouble: NodeTrouble) -> None:
        self._ledger.note("trouble-over", trouble.node, trouble.kind)
        self.links[trouble.node].mended(trouble.kind)

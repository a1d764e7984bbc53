"""Whose fault was a server's death? Told apart by odds, since innocent rows see deaths, too.

A request that was running when its server died is a suspect. The odds that it is poison begin at one in the
number of requests that died together, and grow with each further death while it was the only suspect there:
by 1 / (1 - exp(-rate x exposure)), the inverse of the chance that this server would have died anyway in the
seconds that the request ran. At 99 % it is convicted: after two deaths in a calm fleet, more in a stormy one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

PRIOR_SERVER_S = 2 * 3600.0
"""Before anything is known, a server is taken to die of itself once in two hours."""
CONVICTION = 0.99
COMPANY_GROWTH = 4
"""Once a death has turned out to be nobody's, every four cleared suspects let one more run beside another."""


@dataclass(slots=True, eq=False)
class Death:
    """One server's death: how many of its suspects are not cleared yet."""

    open_suspects: int = 0
    tainted: bool = False
    """Whether one of its suspects was convicted: then it was not the fleet's own."""


@dataclass(slots=True, eq=False)
class Suspicion:
    """What speaks against one request."""

    odds: float
    """That it is poison, as odds: 1.0 is even."""
    deaths: int = 1
    """Deaths that count: the one that made it a suspect, and those while it was the only one there."""
    death: Death = field(default_factory=Death)

    @property
    def probability(self) -> float:
        """The odds as a probability."""
        return self.odds / (1.0 + self.odds)


@dataclass(frozen=True, slots=True)
class Casualty:
    """A request that was running when its server died, and for how long it had run there."""

    suspicion: Suspicion | None
    """What spoke against it before; None for one that was above suspicion."""
    exposure_s: float


@dataclass(frozen=True, slots=True)
class Finding:
    """What a death means for one of its casualties, in their order."""

    suspicion: Suspicion | None
    poison: bool = False


class Blame:
    """The fleet's background rate of deaths, and the verdict on each casualty. Plain state, no clock."""

    def __init__(self, deaths_max: int) -> None:
        self._deaths_max = deaths_max
        self._server_s = PRIOR_SERVER_S
        self._background_deaths = 1.0
        self._innocent_deaths = 0
        self._cleared = 0

    @property
    def rate(self) -> float:
        """Deaths a second that a server dies of itself: learned from deaths without a suspect."""
        return self._background_deaths / self._server_s

    @property
    def company_max(self) -> int:
        """How many suspects may run on one server together: one, until the fleet has shown that it dies."""
        return 1 if self._innocent_deaths == 0 else 1 + self._cleared // COMPANY_GROWTH

    def served(self, server_s: float) -> None:
        """Servers were in rotation for so many seconds, summed over them."""
        self._server_s += server_s

    def died(self, casualties: Sequence[Casualty]) -> list[Finding]:
        """Judge everyone who was running at a server that died, in order."""
        suspects = [casualty for casualty in casualties if casualty.suspicion is not None]
        if not suspects:
            self._background_deaths += 1.0
        sole = suspects[0] if len(suspects) == 1 else None
        if sole is not None and self._convicts(sole):
            return [Finding(None) if each is not sole else self._convicted(sole) for each in casualties]
        death, odds = Death(), 1.0 / max(1, len(casualties))
        return [Finding(each.suspicion or _accused(death, odds)) for each in casualties]

    def cleared(self, suspicion: Suspicion) -> None:
        """A suspect has got its outcome, and its server lives."""
        self._cleared += 1
        death = suspicion.death
        death.open_suspects -= 1
        if death.open_suspects == 0 and not death.tainted:
            self._innocent_deaths += 1

    def _convicts(self, casualty: Casualty) -> bool:
        suspicion = casualty.suspicion
        assert suspicion is not None, "only a suspect can be convicted"
        anyway = -math.expm1(-self.rate * max(casualty.exposure_s, 1e-3))
        suspicion.odds /= anyway
        suspicion.deaths += 1
        return suspicion.probability >= CONVICTION or suspicion.deaths >= self._deaths_max

    def _convicted(self, casualty: Casualty) -> Finding:
        """Its first death was no background death after all; trust in company has to be earned again."""
        assert casualty.suspicion is not None, "only a suspect can be convicted"
        casualty.suspicion.death.tainted = True
        self._background_deaths = max(1.0, self._background_deaths - 1.0)
        self._cleared = 0
        return Finding(casualty.suspicion, poison=True)


def _accused(death: Death, odds: float) -> Suspicion:
    death.open_suspects += 1
    return Suspicion(odds, death=death)

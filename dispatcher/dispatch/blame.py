"""Whose fault was a server's death? Told apart by odds, since innocent rows see deaths, too.

A request that was running when its server died is a suspect. The odds that it is poison begin at one in the
number of requests that died together, and grow with each further death while it was the only suspect there:
by 1 / (1 - exp(-rate x exposure)), the inverse of the chance that this server would have died anyway in the
seconds that the request ran. At 99 % it is convicted: after two deaths in a calm fleet, more in a stormy one.

The rate counts every death as the fleet's own, until a conviction explains it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

PRIOR_SERVER_S = 2 * 3600.0
"""Before anything is known, a server is taken to die of itself once in two hours."""
CONVICTION = 0.99
EXPOSURE_MIN_S = 0.1
"""Deaths that follow a send more closely are told no further apart: so sudden is a crash loop, too."""
COMPANY_GROWTH = 4
"""Once a death has turned out to be nobody's, every four cleared suspects let one more run beside another."""
LONE_DEATHS = 2
"""Deaths after which a suspect runs without another: whatever the company, it meets its judge."""


@dataclass(slots=True, eq=False)
class Death:
    """One server's death: how many of those it made suspects are not cleared yet."""

    open_suspects: int = 0
    explained: bool = False
    """Whether it is not the fleet's own: a suspect was convicted of it, or was lost from sight."""


@dataclass(slots=True, eq=False)
class Suspicion:
    """What speaks against one request."""

    odds: float
    """That it is poison, as odds: 1.0 is even."""
    deaths: int = 1
    """Servers that died while it ran there."""
    seen: list[Death] = field(default_factory=list)
    """Those of its deaths that this process saw."""
    accused: Death | None = None
    """The death that made it a suspect, if this process saw it."""

    @property
    def probability(self) -> float:
        """The odds as a probability."""
        return self.odds / (1.0 + self.odds)

    @property
    def lone(self) -> bool:
        """Whether it is to run without another suspect."""
        return self.deaths >= LONE_DEATHS


@dataclass(frozen=True, slots=True)
class Casualty:
    """A request that was running when its server died, and for how long it had run there."""

    suspicion: Suspicion | None
    """What spoke against it before; None for one that was above suspicion."""
    exposure_s: float
    deaths: int = 0
    """Servers that have died while it ran there before, whoever was to blame."""


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
        self._deaths = 0
        self._innocent_deaths = 0
        self._cleared = 0

    @property
    def rate(self) -> float:
        """Deaths a second that a server dies of itself, with a prior of one in two hours."""
        return (1.0 + self._deaths) / self._server_s

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
        if len(suspects) == 1 and not _as_near(suspects[0], casualties) and self._convicts(suspects[0]):
            return [self._convicted(each) if each is suspects[0] else Finding(None) for each in casualties]
        self._deaths += 1
        death, odds = Death(), 1.0 / max(1, len(casualties))
        return [Finding(_accused(each.suspicion, death, odds)) for each in casualties]

    def cleared(self, suspicion: Suspicion) -> None:
        """A suspect has got its outcome, and its server lives."""
        self._cleared += 1
        if (death := suspicion.accused) is not None:
            death.open_suspects -= 1
            self._innocent_deaths += death.open_suspects == 0 and not death.explained

    def lost_from_sight(self, suspicion: Suspicion) -> None:
        """A suspect is another's now: the death that made it one can be nobody's no more."""
        if suspicion.accused is not None:
            suspicion.accused.explained = True

    def _convicts(self, casualty: Casualty) -> bool:
        suspicion = casualty.suspicion
        assert suspicion is not None, "only a suspect can be convicted"
        suspicion.odds /= -math.expm1(-self.rate * max(casualty.exposure_s, EXPOSURE_MIN_S))
        enough = suspicion.probability >= CONVICTION
        return enough or suspicion.deaths + 1 >= self._deaths_max

    def _convicted(self, casualty: Casualty) -> Finding:
        """Its deaths were not the fleet's own after all; trust in company has to be earned again."""
        suspicion = casualty.suspicion
        assert suspicion is not None, "only a suspect can be convicted"
        suspicion.deaths += 1
        for death in suspicion.seen:
            self._deaths -= not death.explained
            death.explained = True
        self._cleared = 0
        return Finding(suspicion, poison=True)


def _as_near(suspect: Casualty, casualties: Sequence[Casualty]) -> bool:
    """Whether another one was there as often when servers died: it may have hidden behind those convicted."""
    assert suspect.suspicion is not None, "a suspect"
    deaths = suspect.suspicion.deaths
    return any(each is not suspect and deaths <= each.deaths for each in casualties)


def _accused(suspicion: Suspicion | None, death: Death, odds: float) -> Suspicion:
    """One more death for a suspect, the first for another."""
    if suspicion is None:
        suspicion = Suspicion(odds, deaths=0, accused=death)
        death.open_suspects += 1
    suspicion.deaths += 1
    suspicion.seen.append(death)
    return suspicion

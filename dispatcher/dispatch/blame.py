"""Whose fault was a server's death? Told apart by odds, since innocent rows see deaths, too.

A request that was running when its server died is a suspect. Two explanations compete for the death: that the
server would have died anyway while the request ran, which has the chance 1 - exp(-rate x exposure), and that
one of the requests there is poison, as three in a hundred thousand are taken to be. Each further death
divides a suspect's odds by the chance that it had another cause: the server, or another suspect there. The
only suspect there is convicted at 99 %: after two deaths in a calm fleet, more in a stormy one.

The rate is the fleet's own. It counts every death as such, until a conviction explains it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

PRIOR_SERVER_S = 2 * 3600.0
"""Before anything is known, a server is taken to die of itself once in two hours."""
PRIOR_DEATHS = 0.3
"""How much that counts for, in deaths seen: a stormy fleet is to be known as one after a few of its own."""
POISON_SHARE = 3e-5
"""How many of all requests are taken to be poison."""
CONVICTION = 0.99
EXPOSURE_MIN_S = 0.1
"""Deaths that follow a send more closely are told no further apart: so sudden is a crash loop, too."""
COMPANY_GROWTH = 4
"""Once a death has turned out to be nobody's, every four cleared suspects let one more run beside another."""
LONE_DEATHS = 2
"""Deaths after which a suspect runs without another: whatever the company, it meets its judge."""
EXPLAINED_MAX = 2
"""Deaths that a conviction takes off the fleet's own: in a calm fleet there are no more of them."""


@dataclass(slots=True, eq=False)
class Death:
    """One server's death, with those it made suspects and that are not cleared yet."""

    suspects: "dict[Suspicion, None]" = field(default_factory=dict)
    explained: bool = False
    """Whether it is not the fleet's own: a suspect was convicted of it, or was lost from sight."""


@dataclass(frozen=True, slots=True)
class Further:
    """A further death of a suspect's."""

    death: Death
    exposure_s: float
    others: "tuple[Suspicion, ...]"
    """The other suspects there, which may have been the cause as well."""


@dataclass(slots=True, eq=False)
class Suspicion:
    """What speaks against one request."""

    odds: float
    """That it is poison, as odds: 1.0 is even."""
    deaths: int = 1
    """Servers that died while it ran there."""
    accused: Death | None = None
    """The death that made it a suspect, if this process saw it, and nobody else was convicted of it."""
    exposure_s: float | None = None
    """How long it had run at that death; None where an earlier run saw it, and left its odds."""
    rivals_per_s: float = 0.0
    """The inverse exposures of those who were there with it, in all: the more, the less is its share."""
    further: list[Further] = field(default_factory=list)
    """The later deaths that this process saw."""
    excused: bool = False
    """Whether another was convicted, and nothing else speaks against it."""
    cleared: bool = False
    """Whether it has its outcome, and lives in others' memory only."""
    known_odds: float = field(init=False)
    """Its odds at its first death."""

    def __post_init__(self) -> None:
        self.known_odds = self.odds

    @property
    def probability(self) -> float:
        """The odds as a probability."""
        return 0.0 if self.cleared or self.excused else self.odds / (1.0 + self.odds)

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
        self._server_s = PRIOR_DEATHS * PRIOR_SERVER_S
        self._deaths = 0
        self._innocent_deaths = 0
        self._cleared = 0

    @property
    def rate(self) -> float:
        """Deaths a second that a server dies of itself, with a prior of one in two hours."""
        return (PRIOR_DEATHS + self._deaths) / self._server_s

    @property
    def company_max(self) -> int:
        """How many suspects may run on one server together: one, until the fleet has shown that it dies."""
        return 1 if self._innocent_deaths == 0 else 1 + self._cleared // COMPANY_GROWTH

    def served(self, server_s: float) -> None:
        """Servers were in rotation for so many seconds, summed over them."""
        self._server_s += server_s

    def died(self, casualties: Sequence[Casualty]) -> list[Finding]:
        """Judge everyone who was running at a server that died, in order."""
        death = Death()
        suspects = [casualty for casualty in casualties if casualty.suspicion is not None]
        alone = len(suspects) == 1 and not _another_as_near(suspects[0], casualties)
        self._weigh(suspects, death)
        if alone and self._convicts(suspects[0]):
            return [self._convicted(each) for each in casualties]
        self._deaths += 1
        all_per_s = sum(1.0 / _exposure_s(each) for each in casualties)
        return [Finding(each.suspicion or self._accused(each, death, all_per_s)) for each in casualties]

    def cleared(self, suspicion: Suspicion) -> None:
        """A suspect has got its outcome, and its server lives."""
        self._cleared += 1
        suspicion.cleared = True
        if (death := suspicion.accused) is not None:
            del death.suspects[suspicion]
            self._innocent_deaths += not death.suspects and not death.explained

    def lost_from_sight(self, suspicion: Suspicion) -> None:
        """A suspect is another's now: the death that made it one can be nobody's no more."""
        if suspicion.accused is not None:
            suspicion.accused.explained = True

    def _weigh(self, suspects: Sequence[Casualty], death: Death) -> None:
        """One more death speaks against those who were suspects already."""
        all_there = [each.suspicion for each in suspects if each.suspicion is not None]
        for each, suspicion in zip(suspects, all_there, strict=True):
            others = tuple(other for other in all_there if other is not suspicion)
            suspicion.further.append(Further(death, _exposure_s(each), others))
            suspicion.deaths += 1
        odds = [self._odds(suspicion) for suspicion in all_there]  # by what was known of the others before
        for suspicion, value in zip(all_there, odds, strict=True):
            suspicion.odds = value

    def _odds(self, suspicion: Suspicion) -> float:
        """By the rate as it is known now."""
        odds = suspicion.known_odds
        if suspicion.exposure_s is not None:
            odds = POISON_SHARE / self._chance(suspicion.exposure_s)
            odds /= 1.0 + POISON_SHARE / self.rate * suspicion.rivals_per_s
        for further in suspicion.further:
            others = sum(other.probability for other in further.others)
            odds /= min(1.0, self._chance(further.exposure_s) + others)
        return odds

    def _chance(self, exposure_s: float) -> float:
        """That a server dies of itself within so long."""
        return -math.expm1(-self.rate * exposure_s)

    def _accused(self, casualty: Casualty, death: Death, all_per_s: float) -> Suspicion:
        exposure_s = _exposure_s(casualty)
        rivals_per_s = all_per_s - 1.0 / exposure_s
        suspicion = Suspicion(0.0, accused=death, exposure_s=exposure_s, rivals_per_s=rivals_per_s)
        suspicion.odds = suspicion.known_odds = self._odds(suspicion)
        death.suspects[suspicion] = None
        return suspicion

    def _convicts(self, casualty: Casualty) -> bool:
        suspicion = casualty.suspicion
        assert suspicion is not None, "only a suspect can be convicted"
        return suspicion.probability >= CONVICTION or suspicion.deaths >= self._deaths_max

    def _convicted(self, casualty: Casualty) -> Finding:
        """Its deaths were not the fleet's own after all; trust in company has to be earned again."""
        suspicion = casualty.suspicion
        if suspicion is None:
            return Finding(None)
        seen = [further.death for further in suspicion.further]
        seen = [suspicion.accused, *seen] if suspicion.accused is not None else seen
        self._deaths -= min(EXPLAINED_MAX, sum(not death.explained for death in seen[:-1]))
        for death in seen:
            death.explained = True
            for other in [each for each in death.suspects if each is not suspicion]:
                _excuse(other, death)
        self._cleared = 0
        return Finding(suspicion, poison=True)


def _another_as_near(suspect: Casualty, casualties: Sequence[Casualty]) -> bool:
    """Whether another one was there as often when servers died: it may have hidden behind those convicted."""
    assert suspect.suspicion is not None, "a suspect"
    deaths = suspect.suspicion.deaths
    return any(each is not suspect and deaths <= each.deaths for each in casualties)


def _exposure_s(casualty: Casualty) -> float:
    return max(casualty.exposure_s, EXPOSURE_MIN_S)


def _excuse(suspicion: Suspicion, death: Death) -> None:
    """Another was convicted of the death that made it a suspect: only later ones speak against it."""
    del death.suspects[suspicion]
    suspicion.accused = None
    suspicion.further = [further for further in suspicion.further if not further.death.explained]
    suspicion.deaths = len(suspicion.further)
    suspicion.excused = not suspicion.further
    if suspicion.further:
        first = suspicion.further.pop(0)
        suspicion.exposure_s, suspicion.rivals_per_s = first.exposure_s, 0.0

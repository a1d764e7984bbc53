import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.dispatch.blame import EXPOSURE_MIN_S, PRIOR_SERVER_S, Blame, Casualty, Suspicion

PRIOR_RATE = 1 / PRIOR_SERVER_S


def innocents(count, exposure_s=1.0):
    return [Casualty(None, exposure_s) for _ in range(count)]


def accused(blame, count=16):
    return [finding.suspicion for finding in blame.died(innocents(count))]


def chance(rate, exposure_s):
    return 1 - math.exp(-rate * exposure_s)


def test_the_odds_begin_at_one_in_those_who_died_together():
    findings = Blame(5).died(innocents(16))
    assert [(each.poison, each.suspicion.odds, each.suspicion.deaths) for each in findings] == [
        (False, 1 / 16, 1)
    ] * 16


def test_odds_are_told_as_a_probability():
    assert Suspicion(3.0).probability == 0.75


def test_the_second_death_convicts_the_only_suspect_in_a_calm_fleet_and_nobody_beside_it():
    blame = Blame(5)
    suspect, *_ = accused(blame)
    bystander, convicted = blame.died([Casualty(None, 5.0), Casualty(suspect, 1.0)])
    assert (bystander.suspicion, bystander.poison) == (None, False)
    assert (convicted.suspicion, convicted.poison) == (suspect, True)
    assert suspect.deaths == 2
    assert suspect.odds == pytest.approx(1 / 16 / chance(2 * PRIOR_RATE, 1.0))


def test_one_that_was_there_as_often_as_the_only_suspect_is_not_cleared_by_its_conviction():
    blame = Blame(5)
    suspect, *_ = accused(blame)
    findings = blame.died([Casualty(suspect, 1.0, 1), Casualty(None, 1.0, 1), Casualty(None, 1.0)])
    assert not any(finding.poison for finding in findings)
    assert [finding.suspicion.deaths for finding in findings] == [2, 1, 1]
    assert findings[0].suspicion.lone
    (convicted,) = blame.died([Casualty(findings[1].suspicion, 1.0, 2)])
    assert convicted.poison


def test_a_stormy_fleet_needs_more_deaths_and_deaths_max_is_the_last():
    blame = Blame(5)
    for _ in range(600):
        blame.died(innocents(1))
    suspect, *_ = accused(blame)
    deaths = 1
    while not suspect.probability >= 0.99:
        deaths += 1
        (finding,) = blame.died([Casualty(suspect, 30.0)])
        if finding.poison:
            break
    assert (deaths, finding.poison) == (5, True)
    assert suspect.probability < 0.99


def test_a_calmer_storm_needs_three():
    blame = Blame(5)
    for _ in range(9):
        blame.died(innocents(1))
    suspect, *_ = accused(blame)
    rates = [11 / PRIOR_SERVER_S, 12 / PRIOR_SERVER_S]
    (second,) = blame.died([Casualty(suspect, 10.0)])
    (third,) = blame.died([Casualty(suspect, 10.0)])
    assert (second.poison, third.poison) == (False, True)
    assert suspect.odds == pytest.approx(1 / 16 / chance(rates[0], 10.0) / chance(rates[1], 10.0))


def test_an_exposure_is_at_least_a_tenth_of_a_second():
    blame = Blame(5)
    suspect, *_ = accused(blame)
    blame.died([Casualty(suspect, 0.0)])
    assert suspect.odds == pytest.approx(1 / 16 / chance(2 * PRIOR_RATE, EXPOSURE_MIN_S))


def test_two_suspects_that_die_together_prove_nothing_and_run_alone_from_then_on():
    blame = Blame(5)
    one, other, *_ = accused(blame)
    findings = blame.died([Casualty(one, 1.0), Casualty(other, 1.0), Casualty(None, 1.0)])
    assert [each.poison for each in findings] == [False] * 3
    assert (one.odds, other.odds) == (1 / 16, 1 / 16)
    assert [each.suspicion.lone for each in findings] == [True, True, False]
    assert findings[2].suspicion.odds == 1 / 3


def test_the_rate_is_learned_from_time_and_deaths():
    blame = Blame(5)
    assert blame.rate == PRIOR_RATE
    blame.served(2 * PRIOR_SERVER_S)
    assert blame.rate == pytest.approx(PRIOR_RATE / 3)
    blame.died(innocents(4))
    assert blame.rate == pytest.approx(2 * PRIOR_RATE / 3)


def test_deaths_with_suspects_count_for_the_rate_until_a_conviction_explains_them():
    """Were they left out, a fleet where suspects always run would seem to be calm, and convict them."""
    blame = Blame(3)
    suspect, *_ = accused(blame)
    other, *_ = accused(blame)
    blame.died([Casualty(suspect, 7200.0)])
    assert blame.rate == 4 * PRIOR_RATE
    (finding,) = blame.died([Casualty(suspect, 7200.0)])
    assert finding.poison
    assert blame.rate == 2 * PRIOR_RATE
    blame.died([Casualty(other, 1.0)])
    assert blame.rate == PRIOR_RATE


def test_what_an_earlier_run_held_against_it_explains_no_death_of_this_one():
    blame = Blame(5)
    blame.died(innocents(1))
    (finding,) = blame.died([Casualty(Suspicion(1 / 16), 1.0)])
    assert finding.poison
    assert blame.rate == 2 * PRIOR_RATE


def test_company_grows_only_once_a_death_has_turned_out_to_be_nobodys():
    blame = Blame(5)
    suspects = accused(blame, 8)
    sizes = []
    for suspect in suspects:
        blame.cleared(suspect)
        sizes.append(blame.company_max)
    assert sizes == [1, 1, 1, 1, 1, 1, 1, 3]
    for suspect in accused(blame, 4):
        blame.cleared(suspect)
    assert blame.company_max == 4


def test_a_conviction_ends_the_trust_in_company():
    blame = Blame(5)
    for suspect in accused(blame, 8):
        blame.cleared(suspect)
    guilty, *others = accused(blame)
    blame.died([Casualty(guilty, 1.0)])
    assert blame.company_max == 1
    for suspect in others:
        blame.cleared(suspect)
    assert blame.company_max == 1 + 15 // 4


def test_a_death_whose_suspects_are_out_of_sight_is_not_taken_for_nobodys():
    blame = Blame(5)
    one, other = accused(blame, 2)
    blame.lost_from_sight(one)
    blame.cleared(other)
    blame.cleared(Suspicion(1.0))
    assert blame.company_max == 1


@given(
    deaths_max=st.integers(2, 8),
    storms=st.integers(0, 500),
    exposures=st.lists(st.floats(0.0, 1e5), min_size=8, max_size=8),
    company=st.booleans(),
)
def test_a_killer_is_convicted_within_deaths_max_whatever_the_fleet(deaths_max, storms, exposures, company):
    """It may meet other suspects at its second death, and runs alone afterwards."""
    blame = Blame(deaths_max)
    for _ in range(storms):
        blame.died(innocents(1))
    killer, *_ = accused(blame, 200)
    for exposure_s in exposures:
        beside = [Casualty(accused(blame, 1)[0], exposure_s)] if company and not killer.lone else []
        finding, *_ = blame.died([Casualty(killer, exposure_s), *beside])
        if finding.poison:
            break
    assert finding.poison
    assert killer.deaths <= max(deaths_max, 3 if company else 2)
    assert math.isfinite(killer.odds)

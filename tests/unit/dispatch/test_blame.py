import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.dispatch.blame import (
    EXPOSURE_MIN_S,
    POISON_SHARE,
    PRIOR_DEATHS,
    PRIOR_SERVER_S,
    Blame,
    Casualty,
    Suspicion,
)

PRIOR_RATE = 1 / PRIOR_SERVER_S


def innocents(count, exposure_s=1.0):
    return [Casualty(None, exposure_s) for _ in range(count)]


def accused(blame, count=16, exposure_s=0.2):
    return [finding.suspicion for finding in blame.died(innocents(count, exposure_s))]


def again(blame, *suspects, exposure_s=0.2):
    """They run together, and their server dies."""
    return blame.died([Casualty(suspect, exposure_s) for suspect in suspects])


def chance(rate, exposure_s):
    return 1 - math.exp(-rate * exposure_s)


def calm(hours):
    blame = Blame(5)
    blame.served(3600.0 * hours)
    return blame


def stormy(deaths, server_s):
    blame = Blame(5)
    blame.served(server_s)
    for _ in range(deaths):
        blame.died(innocents(1))
    return blame


def test_the_odds_begin_at_the_share_of_poison_by_the_chance_of_a_death_of_itself():
    blame = calm(4)
    (suspect,) = accused(blame, 1, exposure_s=2.0)
    assert suspect.odds == pytest.approx(POISON_SHARE / chance(blame.rate, 2.0))
    assert suspect.deaths == 1


def test_those_who_died_together_share_the_blame_the_latest_to_come_most():
    old, *young = calm(4).died([Casualty(None, 60.0), *innocents(15, 0.5)])
    assert old.suspicion.odds < young[0].suspicion.odds / 100
    total = sum(each.suspicion.probability for each in (old, *young))
    assert total < 1


def test_odds_are_told_as_a_probability():
    assert Suspicion(3.0).probability == 0.75


@pytest.mark.parametrize(("hours", "exposure_s"), [(0, 0.5), (0.5, 1.0), (4, 4.0), (40, 40.0)])
def test_the_second_death_convicts_the_only_suspect_in_a_calm_fleet_and_nobody_beside_it(hours, exposure_s):
    """The longer it is known to be calm, the slower the poison may be."""
    blame = calm(hours)
    suspect, *_ = accused(blame, 16, exposure_s)
    bystander, convicted = blame.died([Casualty(None, 5.0), Casualty(suspect, exposure_s)])
    assert (bystander.suspicion, bystander.poison) == (None, False)
    assert (convicted.suspicion, convicted.poison) == (suspect, True)
    assert suspect.deaths == 2


def test_each_death_alone_divides_the_odds_by_the_chance_of_a_death_of_itself():
    blame = stormy(20, 6000.0)
    suspect, *_ = accused(blame, 4, 8.0)
    before = blame.rate
    again(blame, suspect, exposure_s=10.0)
    first = POISON_SHARE / chance(before, 8.0) / (1 + POISON_SHARE / before * 3 / 8.0)
    assert suspect.odds == pytest.approx(first / chance(before, 10.0))


def test_the_odds_follow_what_is_learned_of_the_rate_meanwhile():
    """Two deaths at the beginning are worth less once the fleet has shown that it dies of itself."""
    blame = Blame(5)
    suspect, *_ = accused(blame, 16, 3.0)
    again(blame, suspect, exposure_s=3.0)
    early = suspect.odds
    for _ in range(20):
        blame.died(innocents(16))
    again(blame, suspect, exposure_s=10.0)
    assert suspect.odds < early


def test_one_that_was_there_as_often_as_the_only_suspect_is_not_cleared_by_its_conviction():
    blame = Blame(5)
    suspect, *_ = accused(blame)
    findings = blame.died([Casualty(suspect, 0.2, 1), Casualty(None, 0.2, 1), Casualty(None, 0.2)])
    assert not any(finding.poison for finding in findings)
    assert [finding.suspicion.deaths for finding in findings] == [2, 1, 1]
    assert findings[0].suspicion.lone
    (convicted,) = blame.died([Casualty(findings[1].suspicion, 0.2, 2)])
    assert convicted.poison


def test_a_stormy_fleet_needs_more_deaths_and_deaths_max_is_the_last():
    blame = stormy(600, 6000.0)
    suspect, *_ = accused(blame)
    deaths = 1
    while not suspect.probability >= 0.99:
        deaths += 1
        (finding,) = again(blame, suspect, exposure_s=30.0)
        if finding.poison:
            break
    assert (deaths, finding.poison) == (5, True)
    assert suspect.probability < 0.99


def test_a_calmer_storm_needs_three():
    blame = stormy(20, 4000.0)
    suspect, *_ = accused(blame)
    assert [again(blame, suspect)[0].poison for _ in range(2)] == [False, True]


def test_an_exposure_is_at_least_a_tenth_of_a_second():
    blame = Blame(5)
    suspect, *_ = accused(blame, 16, 0.0)
    again(blame, suspect, exposure_s=0.0)
    same = Blame(5)
    other, *_ = accused(same, 16, EXPOSURE_MIN_S)
    again(same, other, exposure_s=EXPOSURE_MIN_S)
    assert suspect.odds == other.odds


def test_suspects_that_die_together_convict_nobody_and_run_alone_from_then_on():
    blame = calm(4)
    one, other, *_ = accused(blame)
    before = one.odds
    findings = blame.died([Casualty(one, 1.0), Casualty(other, 1.0), Casualty(None, 1.0)])
    assert [each.poison for each in findings] == [False] * 3
    assert before < one.odds == other.odds
    assert [each.suspicion.lone for each in findings] == [True, True, False]


def test_a_death_in_company_weighs_by_how_suspicious_the_company_is():
    light, heavy = calm(4), calm(4)
    odds = []
    for blame, company_s in ((light, 60.0), (heavy, 0.2)):
        suspect, *_ = accused(blame, 2, 10.0)
        companion, *_ = accused(blame, 2, company_s)
        again(blame, suspect, companion, exposure_s=10.0)
        odds.append(suspect.odds)
    assert odds[0] > 10 * odds[1]


def test_a_companion_that_turns_out_to_be_suspicious_takes_the_weight_off_and_a_cleared_one_puts_it_on():
    blame = stormy(2, 7200.0)
    suspect, companion, *_ = accused(blame)
    again(blame, suspect, companion)
    with_both = blame._odds(suspect)
    companion.odds *= 100
    assert blame._odds(suspect) < with_both
    blame.cleared(companion)
    assert blame._odds(suspect) > with_both


def test_the_rate_is_learned_from_time_and_deaths():
    blame = Blame(5)
    assert blame.rate == PRIOR_RATE
    blame.served(3600.0)
    blame.died(innocents(4))
    assert blame.rate == pytest.approx((PRIOR_DEATHS + 1) / (PRIOR_DEATHS * PRIOR_SERVER_S + 3600.0))


def test_deaths_with_suspects_count_for_the_rate_until_a_conviction_explains_two_of_them():
    """Were they left out, a fleet where suspects always run would seem to be calm, and convict them."""
    blame = stormy(20, 4000.0)
    suspect, *_ = accused(blame)
    assert not again(blame, suspect, exposure_s=20.0)[0].poison
    assert not again(blame, suspect, exposure_s=20.0)[0].poison
    deaths = blame._deaths
    assert again(blame, suspect)[0].poison
    assert (deaths, blame._deaths) == (23, 21)


def test_what_an_earlier_run_held_against_it_explains_no_death_of_this_one():
    blame = Blame(5)
    blame.died(innocents(1))
    (finding,) = again(blame, Suspicion(1 / 16))
    assert finding.poison
    assert blame._deaths == 1


def test_a_conviction_excuses_those_who_died_with_it():
    blame = Blame(5)
    guilty, innocent, *_ = accused(blame)
    assert innocent.probability > 0
    again(blame, guilty)
    assert (innocent.excused, innocent.probability, innocent.deaths) == (True, 0.0, 0)
    assert not guilty.excused


def test_an_excused_one_stands_accused_of_its_later_deaths_only():
    blame = stormy(1, 7200.0)
    guilty, unlucky, *_ = accused(blame)
    again(blame, unlucky, exposure_s=9.0)
    assert not again(blame, guilty, exposure_s=2.0)[0].poison
    assert again(blame, guilty)[0].poison
    assert (unlucky.excused, unlucky.deaths, unlucky.exposure_s, unlucky.further) == (False, 1, 9.0, [])
    blame.cleared(unlucky)


def test_a_bystander_of_two_killers_at_once_is_not_convicted():
    """It was there when the first killed, and alone when the second, above suspicion until then, did."""
    blame = Blame(5)
    killer, bystander, *_ = accused(blame, 16, 0.2)
    again(blame, killer)
    (found, *_) = blame.died([Casualty(None if bystander.excused else bystander, 4.0), *innocents(15, 0.2)])
    assert not found.poison


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
    assert blame.company_max == 3
    guilty, *_ = accused(blame)
    again(blame, guilty)
    assert blame.company_max == 1
    for suspect in accused(blame, 15):
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

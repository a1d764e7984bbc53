import pytest

from dispatcher.dispatch.blame import Blame, Suspicion
from dispatcher.dispatch.casualties import CHARGED_MAX, FATE_S, Casualties, Fallen
from dispatcher.model import ServerId
from dispatcher.pool.effects import Loss

A, B = ServerId("a"), ServerId("b")
NOW = 15.0


@pytest.fixture
def casualties():
    return Casualties(Blame(5))


@pytest.fixture
def charge(casualties):
    """Charge an attempt, as the retry policy does."""

    def charge(item, server=A, at=10.0, *, last_words=True):
        item.charged += 1
        item.tried = (*item.tried, server)
        casualties.charged(server, Fallen(item, 1.0, at, last_words))

    return charge


def running(*items, exposure_s=1.0):
    return [Fallen(item, exposure_s, NOW) for item in items]


def test_those_that_broke_and_those_that_ran_share_the_blame(casualties, make):
    broken, ran = make.item(0), make.item(1)
    casualties.broke(A, Fallen(broken, 1.0, NOW))
    assert (broken.suspect, broken.accused_at) == (True, (A,))
    assert casualties.died(A, running(ran), Loss.DEAD, NOW) == [broken, ran]
    assert broken.suspicion.odds == ran.suspicion.odds > 0
    assert (broken.accused_at, broken.died_at, ran.died_at) == ((), (A,), (A,))


def test_one_that_broke_twice_is_one_casualty(casualties, make):
    item, other = make.item(0), make.item(1)
    casualties.broke(A, Fallen(item, 1.0, NOW))
    casualties.broke(A, Fallen(item, 1.0, NOW))
    assert casualties.died(A, running(item, other), Loss.DEAD, NOW) == [item, other]
    assert item.suspicion.odds == other.suspicion.odds


def test_a_server_that_stopped_in_good_order_blames_nobody(casualties, make):
    item = make.item()
    assert casualties.died(A, running(item), Loss.DEAD, NOW) == []
    assert not item.suspect


def test_a_server_that_hung_blames_those_that_ran_there(casualties, make):
    item = make.item()
    assert casualties.died(A, running(item), Loss.HUNG, NOW) == [item]
    assert item.suspicion.deaths == 1


def test_a_server_that_hung_with_nobody_there_is_no_death(make):
    blame = Blame(5)
    before = blame.rate
    assert Casualties(blame).died(A, [], Loss.HUNG, NOW) == []
    assert blame.rate == before


def test_a_loss_of_another_kind_excuses_everyone(casualties, make):
    broken, ran = make.item(0), make.item(1)
    casualties.broke(A, Fallen(broken, 1.0, NOW))
    assert casualties.died(A, running(ran), Loss.OTHER, NOW) == []
    assert not broken.suspect
    assert not ran.suspect


def test_a_server_that_lives_excuses_those_that_broke_there(casualties, make):
    item = make.item()
    casualties.broke(A, Fallen(item, 1.0, NOW))
    casualties.broke(B, Fallen(item, 1.0, NOW))
    casualties.lives(A)
    assert item.accused_at == (B,)
    casualties.lives(B)
    assert not item.suspect


def test_charges_since_the_last_good_answer_are_refunded_once_each(casualties, charge, make):
    earlier, twice, elsewhere = make.item(0), make.item(1), make.item(2)
    charge(earlier, at=10.0)
    charge(twice, at=12.0)
    charge(twice, at=13.0)
    casualties.answered(A, 11.0)
    casualties.answered(B, 9.0)
    charge(elsewhere, B)
    casualties.died(A, [], Loss.OTHER, NOW)
    assert [(item.charged, item.resends) for item in (earlier, twice, elsewhere)] == [(1, 0), (0, 2), (1, 0)]
    assert (earlier.tried, twice.tried) == ((A,), ())


def test_charges_stand_where_the_server_lives(casualties, charge, make):
    item = make.item()
    charge(item)
    casualties.lives(A)
    casualties.died(A, [], Loss.DEAD, NOW)
    assert (item.charged, item.tried) == (1, (A,))


@pytest.mark.parametrize(("loss", "blamed"), [(Loss.DEAD, True), (Loss.HUNG, False), (Loss.OTHER, False)])
def test_charged_requests_are_suspects_where_the_server_died(casualties, charge, make, loss, blamed):
    item = make.item()
    charge(item)
    casualties.died(A, [], loss, NOW)
    assert (item.suspicion is not None) == blamed


def test_a_request_with_an_outcome_is_no_casualty_of_anything(casualties, charge, make):
    item, other = make.item(0), make.item(1)
    item.suspicion = Suspicion(50.0)
    charge(item, A)
    casualties.broke(B, Fallen(item, 1.0, NOW))
    casualties.ended(item)
    assert not item.suspect
    assert casualties.died(A, running(other), Loss.DEAD, NOW) == []
    assert casualties.died(B, [], Loss.DEAD, NOW) == []
    assert not item.poison


def test_a_request_whose_lease_was_lost_is_no_casualty_of_anything(casualties, make):
    item = make.item()
    casualties.broke(A, Fallen(item, 1.0, NOW))
    casualties.dropped(item)
    assert casualties.died(A, [], Loss.DEAD, NOW) == []


def test_a_server_that_is_gone_for_good_is_forgotten_and_blames_nobody(casualties, charge, make):
    item, other = make.item(0), make.item(1)
    casualties.broke(A, Fallen(item, 1.0, NOW))
    charge(other, B)
    casualties.keep({B}.__contains__)
    assert not item.suspect
    casualties.keep({}.__contains__)
    assert casualties._rolls == {}


def test_the_charges_that_are_remembered_are_bounded(casualties, charge, make):
    items = [make.item(index) for index in range(CHARGED_MAX + 10)]
    for item in items:
        charge(item)
    casualties.died(A, [], Loss.OTHER, NOW)
    assert sum(item.charged for item in items) == 10


def test_the_only_suspect_is_convicted_and_those_beside_it_are_above_suspicion(casualties, make):
    item, beside = make.item(0), make.item(1)
    others = [make.item(index) for index in range(2, 17)]
    casualties.died(A, running(item, *others, exposure_s=0.2), Loss.HUNG, NOW)
    casualties.broke(B, Fallen(item, 0.2, NOW))
    assert casualties.died(B, running(beside), Loss.DEAD, NOW) == [item, beside]
    assert (item.poison, beside.poison, beside.suspicion) == (True, False, None)
    assert not any(other.suspect or other.lone for other in others), "what they died of is explained"


def test_one_that_is_excused_and_meets_another_death_is_accused_anew_and_not_cleared_before(casualties, make):
    guilty, unlucky = make.item(0), make.item(1)
    casualties.died(A, running(guilty, unlucky, exposure_s=0.2), Loss.HUNG, NOW)
    casualties.died(B, running(guilty, exposure_s=0.2), Loss.HUNG, NOW)
    assert (guilty.poison, unlucky.suspect) == (True, False)
    casualties.died(A, running(unlucky), Loss.HUNG, NOW)
    assert (unlucky.suspect, unlucky.suspicion.deaths, unlucky.poison) == (True, 1, False)


def test_an_excused_one_that_ends_well_clears_nobody(casualties, make):
    guilty, innocent = make.item(0), make.item(1)
    casualties.died(A, running(guilty, innocent, exposure_s=0.2), Loss.HUNG, NOW)
    casualties.died(B, running(guilty, exposure_s=0.2), Loss.HUNG, NOW)
    casualties.ended(innocent)
    assert casualties._blame.company_max == 1
    assert casualties._blame._cleared == 0


def test_what_broke_long_before_the_server_was_found_dead_was_not_its_death(casualties, charge, make):
    broken, failed, ran = make.item(0), make.item(1), make.item(2)
    casualties.broke(A, Fallen(broken, 1.0, NOW - FATE_S - 0.1))
    charge(failed, at=NOW - FATE_S - 0.1)
    assert casualties.died(A, running(ran), Loss.DEAD, NOW) == []
    assert not any(item.suspect for item in (broken, failed, ran))
    assert failed.charged == 0


def test_an_answer_that_is_no_engines_last_word_is_refunded_and_blames_nobody(casualties, charge, make):
    garbled, ran = make.item(0), make.item(1)
    charge(garbled, last_words=False)
    assert casualties.died(A, running(ran), Loss.DEAD, NOW) == []
    assert (garbled.charged, garbled.suspect, ran.suspect) == (0, False, False)


def test_an_error_that_older_requests_outlived_was_not_the_engines_death(casualties, charge, make):
    failed, older = make.item(0), make.item(1)
    charge(failed, at=NOW - 2.0)
    assert casualties.died(A, running(older, exposure_s=3.0), Loss.DEAD, NOW) == []
    assert failed.charged == 0


def test_an_error_with_only_younger_requests_beside_it_may_have_been_the_engines_death(
    casualties, charge, make
):
    failed, younger = make.item(0), make.item(1)
    charge(failed, at=NOW - 2.0)
    assert casualties.died(A, running(younger, exposure_s=1.5), Loss.DEAD, NOW) == [failed, younger]

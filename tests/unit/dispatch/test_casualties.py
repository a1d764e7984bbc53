import pytest

from dispatcher.dispatch.blame import Blame, Suspicion
from dispatcher.dispatch.casualties import CHARGED_MAX, Casualties, Fallen
from dispatcher.model import ServerId
from dispatcher.pool.effects import Loss

A, B = ServerId("a"), ServerId("b")


@pytest.fixture
def casualties():
    return Casualties(Blame(5))


@pytest.fixture
def charge(casualties):
    """Charge an attempt, as the retry policy does."""

    def charge(item, server=A, at=10.0):
        item.charged += 1
        item.tried = (*item.tried, server)
        casualties.charged(server, Fallen(item, 1.0, at))

    return charge


def running(*items, exposure_s=1.0):
    return [Fallen(item, exposure_s) for item in items]


def test_those_that_broke_and_those_that_ran_share_the_blame(casualties, make):
    broken, ran = make.item(0), make.item(1)
    casualties.broke(A, broken, 1.0)
    assert (broken.suspect, broken.accused_at) == (True, (A,))
    assert casualties.died(A, running(ran), Loss.DEAD) == [broken, ran]
    assert [item.suspicion.odds for item in (broken, ran)] == [0.5, 0.5]
    assert (broken.accused_at, broken.died_at, ran.died_at) == ((), (A,), (A,))


def test_one_that_broke_twice_is_one_casualty(casualties, make):
    item, other = make.item(0), make.item(1)
    casualties.broke(A, item, 1.0)
    casualties.broke(A, item, 1.0)
    assert casualties.died(A, running(item, other), Loss.DEAD) == [item, other]
    assert item.suspicion.odds == 0.5


def test_a_server_that_stopped_in_good_order_blames_nobody(casualties, make):
    item = make.item()
    assert casualties.died(A, running(item), Loss.DEAD) == []
    assert not item.suspect


def test_a_server_that_hung_blames_those_that_ran_there(casualties, make):
    item = make.item()
    assert casualties.died(A, running(item), Loss.HUNG) == [item]
    assert item.suspicion.deaths == 1


def test_a_server_that_hung_with_nobody_there_is_no_death(make):
    blame = Blame(5)
    before = blame.rate
    assert Casualties(blame).died(A, [], Loss.HUNG) == []
    assert blame.rate == before


def test_a_loss_of_another_kind_excuses_everyone(casualties, make):
    broken, ran = make.item(0), make.item(1)
    casualties.broke(A, broken, 1.0)
    assert casualties.died(A, running(ran), Loss.OTHER) == []
    assert not broken.suspect
    assert not ran.suspect


def test_a_server_that_lives_excuses_those_that_broke_there(casualties, make):
    item = make.item()
    casualties.broke(A, item, 1.0)
    casualties.broke(B, item, 1.0)
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
    casualties.died(A, [], Loss.OTHER)
    assert [(item.charged, item.resends) for item in (earlier, twice, elsewhere)] == [(1, 0), (0, 2), (1, 0)]
    assert (earlier.tried, twice.tried) == ((A,), ())


def test_charges_stand_where_the_server_lives(casualties, charge, make):
    item = make.item()
    charge(item)
    casualties.lives(A)
    casualties.died(A, [], Loss.DEAD)
    assert (item.charged, item.tried) == (1, (A,))


@pytest.mark.parametrize(("loss", "blamed"), [(Loss.DEAD, True), (Loss.HUNG, False), (Loss.OTHER, False)])
def test_charged_requests_are_suspects_where_the_server_died(casualties, charge, make, loss, blamed):
    item = make.item()
    charge(item)
    casualties.died(A, [], loss)
    assert (item.suspicion is not None) == blamed


def test_a_request_with_an_outcome_is_no_casualty_of_anything(casualties, charge, make):
    item, other = make.item(0), make.item(1)
    item.suspicion = Suspicion(50.0)
    charge(item, A)
    casualties.broke(B, item, 1.0)
    casualties.ended(item)
    assert not item.suspect
    assert casualties.died(A, running(other), Loss.DEAD) == []
    assert casualties.died(B, [], Loss.DEAD) == []
    assert not item.poison


def test_a_request_whose_lease_was_lost_is_no_casualty_of_anything(casualties, make):
    item = make.item()
    casualties.broke(A, item, 1.0)
    casualties.dropped(item)
    assert casualties.died(A, [], Loss.DEAD) == []


def test_a_server_that_is_gone_for_good_is_forgotten_and_blames_nobody(casualties, charge, make):
    item, other = make.item(0), make.item(1)
    casualties.broke(A, item, 1.0)
    charge(other, B)
    casualties.keep({B}.__contains__)
    assert not item.suspect
    casualties.keep({}.__contains__)
    assert casualties._rolls == {}


def test_the_charges_that_are_remembered_are_bounded(casualties, charge, make):
    items = [make.item(index) for index in range(CHARGED_MAX + 10)]
    for item in items:
        charge(item)
    casualties.died(A, [], Loss.OTHER)
    assert sum(item.charged for item in items) == 10


def test_the_only_suspect_is_convicted_and_those_beside_it_are_above_suspicion(casualties, make):
    item, beside = make.item(0), make.item(1)
    casualties.died(A, running(item, *(make.item(index) for index in range(2, 17))), Loss.HUNG)
    casualties.broke(B, item, 1.0)
    assert casualties.died(B, running(beside), Loss.DEAD) == [item, beside]
    assert (item.poison, beside.poison, beside.suspicion) == (True, False, None)

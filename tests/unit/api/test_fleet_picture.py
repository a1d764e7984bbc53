import pytest

from dispatcher.api.fleet_picture import SERVERS_SHOWN_MAX, TEXT_CHARACTERS_MAX, Wanted, picture_fleet
from dispatcher.api.members import Member
from dispatcher.api.rates import Meter
from dispatcher.api.reasons import KINDS
from dispatcher.model import Judgement, Verdict
from dispatcher.pool.states import Event, State


def draw(servers, listed=None, now=100.0, **wanted):
    return picture_fleet(servers, listed or {}, Meter(0.0), now, Wanted(**wanted))


def names(picture):
    return [card.id for card in picture.servers]


def counts(picture):
    return {count.state: count.servers for count in picture.states}


@pytest.fixture
def mixed(server):
    return [server("a"), server("b", State.EVICTED), server("c", State.SUSPECT), server("d")]


def test_servers_that_need_a_look_come_first(mixed):
    assert names(draw(mixed)) == ["b", "c", "a", "d"]


def test_of_thousands_some_are_shown_and_all_are_counted(server):
    fleet = [server(f"gpu{number:04}") for number in range(3000)] + [server("zz", State.EVICTED)]
    picture = draw(fleet)
    assert len(picture.servers) == SERVERS_SHOWN_MAX
    assert picture.servers[0].id == "zz"
    assert picture.found == 3001
    assert counts(picture) == {"evicted": 1, "active": 3000}


def test_a_part_of_the_address_and_a_state_choose_among_them_and_leave_the_counts(mixed):
    assert names(draw(mixed, find="d")) == ["d"]
    picture = draw(mixed, state="active")
    assert (names(picture), picture.found) == (["a", "d"], 2)
    assert counts(picture) == {"evicted": 1, "suspect": 1, "active": 2}


def test_a_drained_server_that_is_watched_no_more_is_still_there_to_be_undrained(mixed):
    listed = {name: Member(None, "added", held_out=name == "e") for name in "abcde"}
    picture = draw(mixed, listed, find="e")
    assert [(card.id, card.state, card.held_out) for card in picture.servers] == [("e", "drained", True)]
    assert counts(picture)["drained"] == 1


def test_a_server_that_still_drains_is_shown_as_it_is(server):
    draining = server("a", State.DRAINING)
    picture = draw([draining], {"a": Member(None, "servers", held_out=True)})
    assert [(card.state, card.held_out) for card in picture.servers] == [("draining", True)]


def test_why_a_server_was_evicted_is_still_told_when_it_is_back(server):
    one = server("a", State.EVICTED, "connection refused", now=10.0)
    one.record.evictions = 1
    one.machine.move(Event.ANSWERED, "answers", 50.0)
    one.machine.move(Event.VERIFIED, "verified", 51.0)
    card = draw([one]).servers[0]
    assert (card.state, card.evictions, card.evicted_ago_s) == ("active", 1, 90.0)
    assert card.evicted_for == "connection refused"


def test_what_servers_say_is_kept_from_viewers_who_may_not_read_it(server):
    one = server("a", State.EVICTED, "row says: my secret")
    one.record.evictions = 1
    one.failed(Judgement(Verdict.DOUBTFUL, message="row says: my secret", status=500), 3.0)
    card = draw([one], texts=False).servers[0]
    assert "secret" not in repr(card)
    assert (card.why, card.evicted_for, card.last_fault) == ("died", "died", "")
    assert (card.evictions, card.last_fault_ago_s) == (1, 97.0)


def test_what_servers_say_is_cut(server):
    one = server("a", State.EVICTED, "x" * 5000)
    assert draw([one]).servers[0].why == "x" * TEXT_CHARACTERS_MAX


def test_only_an_active_server_has_permits(mixed):
    assert [card.limit for card in draw(mixed).servers] == [0, 0, 8, 8]


def test_every_kind_of_move_has_words_that_all_may_read():
    assert set(KINDS) == set(Event)

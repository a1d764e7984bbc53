import pytest

from dispatcher.dispatch.backlog import PASSED_OVER_MAX, Backlog, Room
from dispatcher.dispatch.blame import Suspicion
from dispatcher.model import ServerId, ServerSpec
from dispatcher.pool.limits import FixedLimit
from dispatcher.pool.server import Server

NOW = 10.0


def server(name="s", models=None):
    made = Server(ServerSpec(ServerId(name), name), FixedLimit(8), 0.0)
    made.models = models
    return made


def never(_item):
    return False


def always(_item):
    return True


def drain(backlog, taker, has_elsewhere=never):
    taken = []
    while (item := backlog.take(taker, has_elsewhere)) is not None:
        taken.append(item.request.index)
    return taken


def test_fresh_requests_come_in_input_order(make):
    backlog = Backlog()
    backlog.extend(make.item(index) for index in range(5))
    assert drain(backlog, server()) == [0, 1, 2, 3, 4]


def test_input_order_holds_across_models(make):
    backlog = Backlog()
    backlog.extend(make.item(index, model="mn"[index % 2]) for index in range(6))
    assert drain(backlog, server()) == [0, 1, 2, 3, 4, 5]


def test_retries_come_before_fresh_requests_and_in_order_among_themselves(make):
    backlog = Backlog()
    backlog.extend([make.item(0), make.item(1)])
    for index in (7, 5, 6):
        backlog.put_back(make.item(index, model="mn"[index % 2]), NOW, NOW)
    assert drain(backlog, server()) == [5, 6, 7, 0, 1]


def test_a_delayed_retry_is_ready_when_its_time_has_come(make):
    backlog = Backlog()
    backlog.put_back(make.item(3), NOW + 2, NOW)
    backlog.put_back(make.item(4), NOW + 1, NOW)
    assert (len(backlog), backlog.ready()) == (2, False)
    backlog.wake(NOW + 1)
    assert drain(backlog, server()) == [4]
    backlog.wake(NOW + 2)
    assert drain(backlog, server()) == [3]


def test_a_server_is_given_only_what_it_serves(make):
    backlog = Backlog()
    backlog.extend(make.item(index, model=model) for index, model in enumerate(["m", "n", None, "m"]))
    assert drain(backlog, server(models={"n": "n"})) == [1, 2]
    assert len(backlog) == 2


def test_a_retry_passes_over_the_server_that_had_it_while_there_is_an_elsewhere(make):
    backlog, item = Backlog(), make.item(0)
    item.tried = (ServerId("s"),)
    backlog.put_back(item, NOW, NOW)
    backlog.extend([make.item(1)])
    assert drain(backlog, server("s"), always) == [1]
    assert drain(backlog, server("t"), always) == [0]


def test_a_retry_goes_back_to_the_only_server(make):
    backlog, item = Backlog(), make.item(0)
    item.tried = (ServerId("s"),)
    backlog.put_back(item, NOW, NOW)
    assert drain(backlog, server("s"), never) == [0]


def test_a_retry_behind_others_that_are_passed_over_is_found_and_they_keep_their_place(make):
    backlog = Backlog()
    for index in range(4):
        item = make.item(index)
        item.tried = (ServerId("s"),) if index != 2 else ()
        backlog.put_back(item, NOW, NOW)
    assert drain(backlog, server("s"), always) == [2]
    assert drain(backlog, server("t"), always) == [0, 1, 3]


def test_the_search_through_retries_is_bounded(make):
    backlog, asked = Backlog(), []
    for index in range(10 * PASSED_OVER_MAX):
        item = make.item(index)
        item.tried = (ServerId("s"),)
        backlog.put_back(item, NOW, NOW)
    assert backlog.take(server("s"), lambda item: not asked.append(item)) is None
    assert len(asked) == PASSED_OVER_MAX
    assert len(backlog) == 10 * PASSED_OVER_MAX


def test_discarded_requests_are_gone_wherever_they_waited_and_order_stays(make):
    backlog = Backlog()
    backlog.extend(make.item(index) for index in range(6))
    for index in (13, 12, 11, 10):
        backlog.put_back(make.item(index), NOW, NOW)
    for index in (21, 20):
        backlog.put_back(make.item(index), NOW + index, NOW)
    backlog.discard(lambda item: item.request.index in {0, 3, 10, 12, 20})
    backlog.wake(NOW + 100)
    assert drain(backlog, server()) == [11, 13, 21, 1, 2, 4, 5]
    assert (len(backlog), backlog.body_bytes) == (0, 0)


def test_the_models_that_are_waited_for_are_those_of_all_waiting_requests(make):
    backlog = Backlog()
    backlog.extend([make.item(0, model="fresh"), make.item(1, model="taken")])
    backlog.put_back(make.item(2, model="again"), NOW, NOW)
    backlog.put_back(make.item(3, model=None), NOW + 9, NOW)
    assert drain(backlog, server(models={"taken": ""})) == [1]
    assert backlog.models() == {"fresh", "again", None}


@pytest.mark.parametrize("later", [0.0, 5.0])
def test_bytes_and_counts_follow_every_request_in_and_out(make, later):
    backlog = Backlog()
    backlog.extend(make.item(index) for index in range(3))
    assert (len(backlog), backlog.body_bytes) == (3, 6)
    item = backlog.take(server(), never)
    assert (len(backlog), backlog.body_bytes) == (2, 4)
    backlog.put_back(item, NOW + later, NOW)
    assert (len(backlog), backlog.body_bytes) == (3, 6)


def suspect(make, index, deaths=1):
    item = make.item(index)
    item.suspicion = Suspicion(0.1, deaths)
    return item


def test_suspects_go_before_other_retries_where_there_is_room_and_wait_where_there_is_none(make):
    backlog = Backlog()
    backlog.extend([make.item(0), suspect(make, 9)])
    backlog.put_back(make.item(1), NOW, NOW)
    taken = [backlog.take(server(), never, room) for room in (Room.NONE, Room.COMPANY, Room.NONE)]
    assert [item.request.index for item in taken] == [1, 9, 0]


def test_one_that_is_to_run_alone_takes_an_empty_server_and_keeps_others_from_it_until_then(make):
    backlog = Backlog()
    backlog.extend([suspect(make, 0), suspect(make, 1, deaths=2)])
    assert backlog.take(server(), never, Room.COMPANY) is None
    assert backlog.take(server(), never, Room.EMPTY).request.index == 1
    assert backlog.take(server(), never, Room.COMPANY).request.index == 0


def test_one_that_is_to_run_alone_elsewhere_keeps_nobody_from_this_server(make):
    backlog, lone = Backlog(), suspect(make, 1, deaths=2)
    lone.died_at = (ServerId("s"),)
    backlog.extend([suspect(make, 0), lone])
    assert backlog.take(server("s"), always, Room.COMPANY).request.index == 0


def test_suspicion_that_comes_and_goes_while_they_wait_is_heeded(make):
    backlog, item, other = Backlog(), make.item(0), suspect(make, 1)
    backlog.extend([other])
    backlog.put_back(item, NOW, NOW)
    item.suspicion, other.suspicion = other.suspicion, None
    backlog.sort_again()
    assert backlog.take(server(), never, Room.NONE) is other
    assert backlog.take(server(), never, Room.NONE) is None
    assert backlog.take(server(), never, Room.EMPTY) is item
    assert (len(backlog), backlog.body_bytes) == (0, 0)


def test_suspects_are_all_there_is_only_where_nothing_else_is_ready(make):
    backlog = Backlog()
    backlog.extend([suspect(make, 1), suspect(make, 2, deaths=2)])
    backlog.put_back(make.item(3), NOW + 5, NOW)
    assert backlog.suspects_only() == 2
    backlog.wake(NOW + 5)
    assert backlog.suspects_only() == 0


def test_discarded_suspects_are_told_and_gone(make):
    backlog = Backlog()
    items = [suspect(make, 0), suspect(make, 1, deaths=2), make.item(2)]
    backlog.extend(items)
    assert sorted(backlog.discard(lambda _item: True)) == items
    assert (len(backlog), backlog.models(), backlog.suspects_only()) == (0, set(), 0)

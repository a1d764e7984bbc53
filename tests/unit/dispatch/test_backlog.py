import pytest

from dispatcher.dispatch.backlog import PASSED_OVER_MAX, Backlog
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

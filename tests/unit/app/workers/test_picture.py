"""Several workers as one run."""

from dispatcher.app.snapshot import Phase, ServerView, Snapshot
from dispatcher.app.workers.picture import Picture
from dispatcher.model import Tally

A, B = "http://a:8000", "http://b:8000"


def server(name=A, state="active", **more):
    fields = {
        "in_state_s": 5.0,
        "reason": "verified",
        "in_flight": 2,
        "limit": 4,
        "succeeded": 10,
        "failed": 1,
        "evictions": 0,
        "last_fault": "",
        "last_fault_ago_s": None,
    }
    return ServerView(server=name, state=state, **{**fields, **more})


def snapshot(succeeded=0, earlier=0, **more):
    done = Tally(succeeded=succeeded + earlier)
    return Snapshot(Phase.RUNNING, 0, done, Tally(succeeded=succeeded), **more)


def view(picture, earlier=0):
    return picture.view(Phase.RUNNING, 1000, Tally(succeeded=earlier), 12.0)


def test_what_workers_have_done_adds_up_with_what_was_done_before():
    picture = Picture()
    picture.told(0, snapshot(10, 3, in_flight=4, rows_per_s=2.0, tokens_per_s=20.0, by_server={A: 10}))
    picture.told(1, snapshot(7, 0, in_flight=1, rows_per_s=1.5, tokens_per_s=10.0, by_server={A: 2, B: 5}))
    shown = view(picture, earlier=100)
    assert shown.done.succeeded == 120
    assert shown.this_run.succeeded == 17
    assert (shown.in_flight, shown.rows_per_s, shown.tokens_per_s, shown.seconds) == (5, 3.5, 30.0, 12.0)
    assert shown.by_server == {A: 12, B: 5}
    assert shown.left == 880


def test_a_later_report_takes_the_place_of_the_one_before():
    picture = Picture()
    for succeeded in (1, 2, 3):
        picture.told(0, snapshot(succeeded))
    assert view(picture).done.succeeded == 3


def test_of_a_killed_worker_counts_what_it_had_settled_and_nothing_is_counted_twice():
    picture = Picture()
    picture.told(0, snapshot(300, by_server={A: 300}, servers=(server(succeeded=300),)))
    picture.ended(0, Tally(succeeded=256))
    assert view(picture).done.succeeded == 256
    picture.told(0, snapshot(10, 44, servers=(server(succeeded=10),)))  # it has read the other's journal
    shown = view(picture)
    assert shown.done.succeeded == 256 + 54
    assert shown.this_run.succeeded == 310
    assert shown.servers[0].succeeded == 310


def test_a_worker_that_has_ended_in_order_keeps_all_that_it_told():
    picture = Picture()
    picture.told(0, snapshot(300))
    picture.ended(0)
    assert view(picture).done.succeeded == 300
    assert view(picture).in_flight == 0


def test_a_worker_that_died_before_its_first_report_may_have_settled_something():
    picture = Picture()
    picture.ended(0, Tally(succeeded=5))
    assert view(picture).done.succeeded == 5


def test_permits_of_a_server_add_up_and_where_workers_differ_the_trouble_is_shown():
    picture = Picture()
    fault = {"last_fault": "HTTP 500", "last_fault_ago_s": 2.0}
    older = {"last_fault": "refused", "last_fault_ago_s": 9.0}
    picture.told(0, snapshot(servers=(server(A, **fault), server(B))))
    evicted = server(A, "evicted", reason="refused", in_flight=0, limit=0, **older)
    picture.told(1, snapshot(servers=(evicted, server(B))))
    first, second = view(picture).servers
    assert (first.state, first.reason) == ("evicted", "refused (1 of 2 workers)")
    assert (first.in_flight, first.limit, first.last_fault) == (2, 4, "HTTP 500")
    assert (second.state, second.reason, second.limit, second.failed) == ("active", "verified", 8, 2)


def test_what_is_in_the_way_of_one_is_shown():
    picture = Picture()
    picture.told(0, snapshot())
    picture.told(1, snapshot(obstacle="disk full", waiting_for=("m", None)))
    assert view(picture).obstacle == "disk full"
    assert view(picture).waiting_for == (None, "m")

import pytest

from dispatcher.app.snapshot import Phase, Snapshot, view_server
from dispatcher.model import ServerId, ServerSpec, Tally
from dispatcher.pool.limits import FixedLimit
from dispatcher.pool.server import Server
from dispatcher.pool.states import Event


def snapshot(**more):
    return Snapshot(Phase.RUNNING, rows=100, done=Tally(succeeded=50, failed=10), this_run=Tally(), **more)


def test_the_rest_is_told_in_seconds_at_the_present_rate():
    assert snapshot(rows_per_s=4.0).eta_s == 10.0


@pytest.mark.parametrize(
    "held_up",
    [
        {"rows_per_s": 0.0},
        {"rows_per_s": 4.0, "waiting_for": (None,)},
        {"rows_per_s": 4.0, "obstacle": "full"},
    ],
)
def test_a_job_that_is_held_up_has_no_end_in_sight(held_up):
    assert snapshot(**held_up).eta_s is None


@pytest.mark.parametrize(
    ("wanted", "serving"), [((), ""), (("here",), ""), (("here", "elsewhere"), "serves here"), ((None,), "")]
)
def test_a_server_in_rotation_shows_its_models_where_others_are_waited_for(wanted, serving):
    server = Server(ServerSpec(ServerId("s"), "s"), FixedLimit(4), 0.0)
    server.models = {"here": "here"}
    assert view_server(server, 1.0, ("elsewhere",)).serving == "", "its state says why"
    server.machine.move(Event.ANSWERED, "", 1.0)
    server.machine.move(Event.VERIFIED, "verified", 1.0)
    assert view_server(server, 2.0, wanted).serving == serving

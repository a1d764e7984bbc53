import pytest

from dispatcher.app.snapshot import Phase, Snapshot
from dispatcher.model import Tally


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

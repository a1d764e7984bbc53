import pytest
from rich.console import Console

from dispatcher.app.snapshot import Phase, ServerView, Snapshot
from dispatcher.cli.view import SERVERS_LOGGED_MAX, SERVERS_SHOWN_MAX, RateMeter, render, told
from dispatcher.model import Tally

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def server(name="http://gpu01:8000", state="active", **fields):
    given = {
        "in_state_s": 3.0,
        "reason": "verified",
        "in_flight": 8,
        "limit": 16,
        "succeeded": 1234,
        "failed": 0,
        "evictions": 0,
        "last_fault": "",
        "last_fault_ago_s": None,
    }
    return ServerView(name, state, **{**given, **fields})


def snapshot(*servers, **fields):
    given = {"phase": Phase.RUNNING, "rows": 2000, "done": Tally(839, 2), "this_run": Tally(839, 2)}
    rates = {"in_flight": 32, "rows_per_s": 154.0, "tokens_per_s": 3700.0, "seconds": 5.0}
    return Snapshot(**{**given, **rates, **fields}, servers=servers)


def shown(snapshot, width):
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(render(snapshot, {}))
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_figure_is_whole_at_any_usual_width(width):
    dead = server("http://gpu02:8000", "evicted", reason=ENGINE_DEAD, last_fault=ENGINE_DEAD)
    text = shown(snapshot(server(last_fault=ENGINE_DEAD, last_fault_ago_s=6.0), dead), width)
    assert text[0].startswith("running  42.0 % of 2,000 rows")
    assert "839 done, 2 failed, 32 in flight, 1,159 left" in text
    assert "154 rows/s, 3,700 tokens/s, ETA 8s" in text
    for name, state in (("http://gpu01:8000", "active 3s"), ("http://gpu02:8000", "evicted 3s")):
        (line,) = [line for line in text if line.startswith(name)]
        assert state in line
        assert "8/16" in line
        assert "1,234" in line
    assert all(len(line) <= width for line in text)


def test_of_several_steps_the_one_that_runs_is_named():
    text = shown(snapshot(server(), step="step 2 of 3, topic"), 80)
    assert text[0].startswith("step 2 of 3, topic: running  42.0 % of 2,000 rows")


def test_a_wide_terminal_shows_the_whole_fault():
    text = shown(snapshot(server(last_fault=ENGINE_DEAD, last_fault_ago_s=6.0)), 200)
    assert any(line.rstrip().endswith(f"6s ago: {ENGINE_DEAD}") for line in text)


def test_a_server_that_never_answered_says_why():
    text = shown(snapshot(server(state="joining", reason="not answered yet: refused")), 120)
    assert any("not answered yet: refused" in line for line in text)


def test_a_server_in_rotation_that_has_none_of_the_awaited_models_says_which_it_has():
    busy = server(serving="serves other", last_fault="HTTP 404", last_fault_ago_s=6.0)
    text = shown(snapshot(busy, waiting_for=("m",)), 120)
    assert any(line.startswith(busy.server) and line.rstrip().endswith("serves other") for line in text)


def test_an_obstacle_and_missing_servers_are_said():
    text = "\n".join(shown(snapshot(obstacle="No space left on device", waiting_for=("m", None)), 80))
    assert "cannot record: No space left on device" in text
    assert "waiting for a server that serves m, any model" in text


def test_of_many_servers_those_that_need_a_look_are_shown():
    well = [server(f"http://gpu{number:03}:8000") for number in range(100)]
    text = shown(snapshot(*well, server("http://gpu999:8000", "evicted")), 100)
    assert any(line.startswith("http://gpu999:8000") for line in text)
    assert sum(line.startswith("http://") for line in text) == SERVERS_SHOWN_MAX
    (rest,) = [line.split() for line in text if line.startswith("and ")]
    assert rest == ["and", f"{101 - SERVERS_SHOWN_MAX}", "more:", f"{101 - SERVERS_SHOWN_MAX}", "active"]


def test_the_log_tells_of_each_server_since_when_it_is_what_and_why_without_its_own_words():
    away = {"in_flight": 0, "limit": 0, "in_state_s": 61.0}
    dead = server("http://gpu02:8000", "evicted", reason="a prompt", plain_reason="refused " * 100, **away)
    faulty = {"last_fault": "a prompt", "plain_fault": ENGINE_DEAD, "last_fault_ago_s": 6.0}
    words = told([server(), server("http://gpu03:8000", **faulty), dead])
    assert words["http://gpu01:8000"] == "active 8/16 for 3s"
    assert words["http://gpu03:8000"] == f"active 8/16 for 3s: 6s ago: {ENGINE_DEAD}"
    assert words["http://gpu02:8000"].startswith("evicted 0/0 for 1m 01s: refused refused")
    assert len(words["http://gpu02:8000"]) < 160


def test_the_log_s_line_does_not_grow_with_the_fleet():
    words = told(
        [server(f"http://gpu{number:04}:8000") for number in range(1000)] + [server(state="evicted")]
    )
    assert len(words) == SERVERS_LOGGED_MAX + 1
    assert words["http://gpu01:8000"].startswith("evicted")
    assert words[f"and {1001 - SERVERS_LOGGED_MAX} more"] == f"{1001 - SERVERS_LOGGED_MAX} active"


def test_a_servers_rate_follows_its_successes():
    meter = RateMeter()
    assert meter.update(snapshot(server(succeeded=0), seconds=0.0)) == {}
    assert meter.update(snapshot(server(succeeded=50), seconds=5.0)) == {"http://gpu01:8000": 10.0}
    slower = meter.update(snapshot(server(succeeded=50), seconds=10.0))
    assert slower == {"http://gpu01:8000": pytest.approx(8.0)}

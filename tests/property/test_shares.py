"""Jobs come in hand, take turns, are changed and withdrawn in any order: nobody gets more than its share."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.dispatch.shares import Shares
from dispatcher.model import Job, JobId

NAMES = "abc"
JOBS = st.builds(
    Job,
    id=st.sampled_from([JobId(name) for name in NAMES]),
    priority=st.integers(0, 1),
    weight=st.sampled_from([0.001, 0.5, 1.0, 3.0, 1e6]),
)
MOVES = st.one_of(
    st.tuples(st.just("come"), JOBS, st.integers(1, 40)),
    st.tuples(st.just("change"), JOBS, st.just(0)),
    st.tuples(st.just("take"), st.just(None), st.integers(1, 40)),
    st.tuples(st.just("drop"), st.sampled_from(NAMES), st.sampled_from([1, 10_000])),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(MOVES, max_size=20))
def test_every_request_that_came_is_had_by_turns_and_the_highest_priority_goes_first(moves):
    shares, ready, priority = Shares(), dict.fromkeys(NAMES, 0), {}
    for kind, what, count in moves:
        if kind == "come":
            priority[what.id] = what.priority
            ready[what.id] += count
            for _ in range(count):
                shares.came(what)
        elif kind == "change":
            priority[what.id] = what.priority
            shares.expect(what)
        elif kind == "drop":
            shares.dropped(what, min(count, ready[what]))
            ready[what] -= min(count, ready[what])
        else:
            for _ in range(min(count, sum(ready.values()))):
                turn = min((job for job in NAMES if ready[job]), key=shares.rank)
                assert priority[turn] == max(priority[job] for job in NAMES if ready[job])
                shares.took(turn)
                ready[turn] -= 1
    assert shares.ample() == {job for job in NAMES if ready[job] > 16}


@settings(max_examples=100, deadline=None)
@given(st.floats(0.1, 10), st.floats(0.1, 10), st.lists(st.integers(0, 30), max_size=8))
def test_two_jobs_that_are_always_in_hand_stay_within_one_request_of_their_weights(first, second, visits):
    """Whoever else comes for a while and goes."""
    a, b = Job(JobId("a"), weight=first), Job(JobId("b"), weight=second)
    shares, taken, ready = Shares(), dict.fromkeys("abv", 0), 0
    for job in (a, b):
        for _ in range(600):
            shares.came(job)
    for number, rows in enumerate(visits or [0]):
        for _ in range(rows):
            shares.came(Job(JobId("v"), weight=1 + number))
        ready += rows
        for _ in range(50):
            turn = min("abv" if ready else "ab", key=shares.rank)
            shares.took(JobId(turn))
            ready -= turn == "v"
            taken[turn] += 1
            assert abs(taken["a"] / first - taken["b"] / second) <= 1.001 * max(1 / first, 1 / second)

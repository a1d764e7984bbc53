from dispatcher.model import JobId
from dispatcher.queue.fairness import Share, Turns

A, B, C = JobId("a"), JobId("b"), JobId("c")


def order(turns, requests=1):
    taken = []
    while (job_id := turns.next()) is not None:
        turns.took(job_id, requests)
        taken.append(job_id)
    return "".join(taken)


def test_priority_goes_before_fairness():
    assert order(Turns([Share(A, 0, 1.0), Share(B, 1000, 2.0, priority=1)], 3)) == "bbb"


def test_a_triple_weight_gets_three_times_as_much():
    assert order(Turns([Share(A, 0, 1.0), Share(B, 0, 2.0, weight=3.0)], 8)).count("b") == 6


def test_the_job_that_has_less_catches_up_first():
    assert order(Turns([Share(A, 4, 1.0), Share(B, 0, 2.0)], 6)) == "bbbbab"


def test_the_older_job_goes_first_among_equals():
    assert order(Turns([Share(A, 0, 2.0), Share(B, 0, 1.0), Share(C, 0, 3.0)], 3)) == "bac"


def test_the_id_decides_between_jobs_of_one_moment():
    assert order(Turns([Share(B, 0, 1.0), Share(A, 0, 1.0)], 2)) == "ab"


def test_an_exhausted_job_has_no_more_turns():
    turns = Turns([Share(A, 0, 1.0), Share(B, 5, 1.0)], 3)
    turns.exhausted(A)
    assert order(turns) == "bbb"


def test_shards_without_requests_do_not_go_on_for_ever():
    assert order(Turns([Share(A, 0, 1.0)], 3), requests=0) == "aaa"


def test_without_jobs_it_is_nobodys_turn():
    assert Turns([], 3).next() is None

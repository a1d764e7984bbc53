from collections import Counter

from dispatcher.dispatch.shares import CATCH_UP, JOBS_MAX, SHORT, Shares
from dispatcher.model import Job, JobId

A, B, C = (Job(JobId(name)) for name in "abc")


def weighing(job, weight):
    return Job(job.id, weight=weight)


def shares_of(*jobs, rows=1000):
    shares = Shares()
    for job in jobs:
        for _ in range(rows):
            shares.came(job)
    return shares


def turns(shares, count, among):
    """Whose turn it is, that often, among these jobs in this order of age."""
    taken = []
    for _ in range(count):
        taken.append(min((job.id for job in among), key=shares.rank))
        shares.took(taken[-1])
    return "".join(taken)


def test_equal_jobs_take_turns():
    assert turns(shares_of(A, B), 6, [A, B]) == "ababab"


def test_a_triple_weight_gets_three_of_four():
    heavy = weighing(B, 3)
    assert turns(shares_of(A, heavy), 8, [A, heavy]) == "abbbabbb"


def test_a_weight_below_one_gets_its_part():
    light = weighing(B, 0.25)
    assert Counter(turns(shares_of(A, light), 100, [A, light])) == {"a": 80, "b": 20}


def test_a_higher_priority_goes_first_whatever_the_weights():
    high = Job(B.id, priority=1, weight=0.001)
    assert turns(shares_of(A, high), 50, [A, high]) == "b" * 50


def test_a_job_that_comes_later_begins_where_the_others_are():
    shares = shares_of(A, B)
    turns(shares, 500, [A, B])
    for _ in range(100):
        shares.came(C)
    assert Counter(turns(shares, 90, [A, B, C])) == {"a": 30, "b": 30, "c": 30}


def test_a_job_that_was_alone_owes_the_next_nothing():
    shares = shares_of(A)
    turns(shares, 500, [A])
    for _ in range(100):
        shares.came(B)
    assert turns(shares, 6, [A, B]) == "ababab"


def test_a_job_whose_shards_have_one_row_each_gets_no_more_than_its_share():
    shares = shares_of(A)
    taken = Counter()
    for _ in range(100):
        shares.came(B)
        while (turn := turns(shares, 1, [A, B])) != "b":
            taken[turn] += 1
        taken[turn] += 1
    assert taken["a"] in (99, 100)


def test_what_a_job_of_another_priority_has_had_holds_up_nobody():
    high = Job(B.id, priority=1)
    shares = shares_of(A, high, rows=300)
    turns(shares, 300, [A, high])
    turns(shares, 100, [A])
    for _ in range(100):
        shares.came(C)
    assert turns(shares, 4, [A, C]) in ("acac", "caca")


def test_a_job_that_could_not_be_sent_catches_up_by_a_bounded_number():
    shares = shares_of(A, B)
    turns(shares, 900, [A])
    for _ in range(900):
        shares.came(A)
    first = turns(shares, 1000, [A, B])
    assert first.startswith("b" * CATCH_UP)
    assert first[CATCH_UP + 1 :].startswith(("ab" * 100, "ba" * 100))


def test_another_weight_or_priority_holds_from_the_next_turn_on():
    shares = shares_of(A, B)
    turns(shares, 10, [A, B])
    shares.expect(weighing(A, 3))
    assert Counter(turns(shares, 40, [A, B])) == {"a": 30, "b": 10}
    shares.expect(Job(B.id, priority=1))
    assert turns(shares, 20, [A, B]) == "b" * 20
    shares.expect(B)
    assert Counter(turns(shares, 40, [A, B])) == {"a": 30, "b": 10}


def test_jobs_that_are_done_with_are_forgotten():
    shares = shares_of(A, rows=100)
    for number in range(50):
        job = Job(JobId(f"job-{number}"), priority=number % 3)
        shares.came(job)
        shares.came(job)
        turns(shares, 1, [job])
        shares.dropped(job.id, 1)
        turns(shares, 2, [A])
    assert len(shares._shares) <= 3
    assert len(shares._reached) <= 3


# Asking the queue


def test_more_is_asked_for_where_a_job_runs_short_beside_another_and_not_where_it_is_alone():
    alone, beside = shares_of(A, rows=40), shares_of(A, B, rows=40)
    turns(alone, 40, [A])
    assert not alone.asking
    turns(beside, 2 * (40 - SHORT) - 2, [A, B])
    assert not beside.asking
    turns(beside, 1, [A, B])
    assert beside.asking
    assert beside.ample() == {"b"}


def test_once_the_queue_has_nothing_it_is_not_asked_again_without_news():
    shares = shares_of(A, B, rows=2 * SHORT)
    turns(shares, 2 * SHORT, [A, B])
    shares.asking = False
    shares.asked(found=True)
    assert shares.asking
    shares.asking = False
    shares.asked(found=False)
    turns(shares, SHORT, [A, B])
    assert not shares.asking
    shares.expect(C)
    assert shares.asking


def test_news_that_come_while_the_queue_is_asked_are_not_lost():
    shares = shares_of(A)
    shares.asking = False
    shares.expect(B)
    shares.asked(found=False)
    assert shares.asking


def test_a_job_of_which_enough_is_in_hand_is_not_asked_for():
    shares = shares_of(A, rows=SHORT + 1)
    shares.expect(Job(A.id, priority=2))
    assert not shares.asking
    turns(shares, 1, [A])
    shares.expect(A)
    assert shares.asking


def test_a_job_that_comes_and_goes_before_its_turn_leaves_nothing_behind():
    shares = shares_of(A)
    shares.came(B)
    shares.dropped(B.id, 1)
    shares.came(C)
    assert set(shares._shares) == {"a", "c"}


def test_of_very_many_jobs_only_so_many_are_in_hand_and_a_higher_one_all_the_same():
    shares = shares_of(*(Job(JobId(f"job-{number}")) for number in range(JOBS_MAX)))
    shares.asked(found=True)
    shares.expect(A)
    assert not shares.asking
    shares.expect(Job(A.id, priority=1))
    assert shares.asking


def test_very_many_jobs_that_run_short_are_not_replaced_by_still_more():
    jobs = [Job(JobId(f"job-{number}")) for number in range(JOBS_MAX)]
    high = Job(A.id, priority=1)
    shares = shares_of(*jobs, high, rows=SHORT + 1)
    turns(shares, 1, [jobs[0]])
    assert not shares.asking
    turns(shares, SHORT, [jobs[0]])
    assert shares.asking, "one has made room for one"
    shares.asking = False
    shares.came(jobs[0])
    turns(shares, 1, [high])
    assert shares.asking, "a higher one has its next shard"

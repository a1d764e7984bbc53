from dispatcher.dispatch.ledger import HINDERED_MAX, Ledger
from dispatcher.dispatch.shards import ShardInHand
from dispatcher.model import Job, JobId, Lease, Outcome, Shard, Tally, Tokens

A, B = Job(JobId("a")), Job(JobId("b"))


def shard(job=A, number=0, succeeded=0):
    lease = Lease(job, Shard(number, number * 10, 10, 0, 1), 1)
    return ShardInHand(lease, 10 - succeeded, Tally(succeeded=succeeded))


def outcomes(count):
    return [Outcome(index, str(index), None, tokens=Tokens(1, 5)) for index in range(count)]


def tally_of(ledger, *in_hand, job=A):
    return ledger.standings(in_hand, 0.0)[job.id].tally.succeeded


def test_a_jobs_tally_is_what_was_settled_and_what_its_shards_in_hand_have():
    ledger = Ledger()
    ledger.follow(A.id, Tally(succeeded=20), 2, {})
    assert tally_of(ledger, shard(succeeded=3), shard(number=1, succeeded=4), shard(B, succeeded=5)) == 27


def test_a_settled_shard_counts_once_and_somebody_is_told():
    ledger, told = Ledger(), []
    ledger.settled = told.append
    ledger.follow(A.id, Tally(), 0, {})
    done = shard(succeeded=10)
    assert tally_of(ledger, done) == 10
    ledger.settle(done)
    assert (tally_of(ledger), ledger.shards_settled(A.id), told) == (10, 1, ["a"])


def test_what_a_shard_had_that_went_back_is_counted_until_it_is_in_hand_again():
    ledger = Ledger()
    ledger.follow(A.id, Tally(), 0, {})
    ledger.gave_back(shard(succeeded=4))
    assert tally_of(ledger) == 4
    again = shard(succeeded=4)
    ledger.took(again)
    assert tally_of(ledger, again) == 4


def test_jobs_that_nobody_follows_have_no_account():
    ledger = Ledger()
    for change in (ledger.took, ledger.gave_back, ledger.settle):
        change(shard(succeeded=1))
    ledger.recorded(A.id, outcomes(3))
    assert ledger.standings([shard()], 0.0) == {}
    assert ledger.shards_settled(A.id) == 0
    ledger.follow(A.id, Tally(), 0, {})
    ledger.forget(A.id)
    assert ledger.standings([shard()], 0.0) == {}


def test_what_earlier_runs_recorded_counts_until_its_shard_is_in_hand():
    ledger = Ledger()
    ledger.follow(A.id, Tally(10), 1, {1: Tally(4, 2, errors={"timeout": 2}), 2: Tally(3)})
    assert tally_of(ledger) == 17
    ledger.took(shard(number=1, succeeded=4))
    standing = ledger.standings([shard(number=1, succeeded=4)], 0.0)[A.id]
    assert standing.tally == Tally(17, 0)


def test_a_shard_that_is_hindered_is_said_until_it_is_in_hand():
    ledger = Ledger()
    assert not ledger.hindered(shard().lease, "torn", 0.0)
    ledger.follow(A.id, Tally(), 0, {})
    assert ledger.hindered(shard().lease, "torn", 7.0)
    assert (ledger.standings([], 9.0)[A.id].hindrance, ledger.is_hindered(A.id)) == ("torn", True)
    assert ledger.to_be_tried(A.id, 6.9) == []
    assert ledger.to_be_tried(A.id, 7.0) == [shard().lease]
    assert (ledger.to_be_tried(A.id, 7.0), ledger.is_hindered(A.id)) == ([], True)
    ledger.took(shard())
    assert (ledger.standings([], 9.0)[A.id].hindrance, ledger.is_hindered(A.id)) == (None, False)


def test_a_job_of_which_many_shards_are_hindered_is_stuck_until_they_are_tried():
    ledger = Ledger()
    ledger.follow(A.id, Tally(), 0, {})
    for number in range(HINDERED_MAX):
        assert ledger.stuck == frozenset()
        ledger.hindered(shard(number=number).lease, "torn", 0.0)
    assert ledger.stuck == {A.id}
    assert len(ledger.to_be_tried(A.id, 5.0)) == HINDERED_MAX
    assert ledger.stuck == frozenset()


def test_the_time_before_the_first_outcome_is_no_part_of_a_rate():
    ledger = Ledger()
    ledger.follow(A.id, Tally(), 0, {})
    for second in range(21):
        ledger.sample(float(second))
        if second >= 10:
            ledger.recorded(A.id, outcomes(2))
    standing = ledger.standings([], 20.0)[A.id]
    assert (standing.rows_per_s, standing.rates_over_s) == (22 / 10, 10.0)


def test_after_a_pause_the_rate_begins_anew():
    ledger = Ledger()
    ledger.follow(A.id, Tally(), 0, {})
    for second in range(30):
        ledger.sample(float(second))
        ledger.recorded(A.id, outcomes(9))
    ledger.begin_rates(A.id)
    assert ledger.standings([], 30.0)[A.id].rates_over_s == 0.0
    ledger.sample(50.0)
    ledger.recorded(A.id, outcomes(4))
    standing = ledger.standings([], 52.0)[A.id]
    assert (standing.rows_per_s, standing.rates_over_s) == (2.0, 2.0)


def test_rates_are_over_the_last_minute():
    ledger = Ledger()
    ledger.follow(A.id, Tally(), 0, {})
    for second in range(121):
        ledger.sample(float(second))
        ledger.recorded(A.id, outcomes(1 if second < 60 else 3))
    standing = ledger.standings([], 120.0)[A.id]
    assert standing.rows_per_s == 183 / 60
    assert standing.tokens_per_s == 5 * 183 / 60


def test_what_other_nodes_have_settled_counts_and_is_no_progress_of_this_one():
    ledger = Ledger()
    ledger.follow(A.id, Tally(), 0, {})
    ledger.gave_back(shard(succeeded=4))
    ledger.sample(0.0)
    ledger.recorded(A.id, outcomes(6))
    ledger.caught_up(A.id, Tally(succeeded=500), 50)
    standing = ledger.standings([], 10.0)[A.id]
    assert (standing.tally.succeeded, standing.shards_settled, standing.rows_per_s) == (500, 50, 0.6)
    ledger.caught_up(A.id, Tally(succeeded=400), 40)  # an older look
    assert ledger.shards_settled(A.id) == 50


def test_what_was_found_in_journals_is_no_progress_of_this_run():
    ledger = Ledger()
    ledger.follow(A.id, Tally(), 0, {})
    standing = ledger.standings([shard(succeeded=9)], 1.0)[A.id]
    assert (standing.tally.succeeded, standing.rows_per_s) == (9, 0.0)

from dispatcher.dispatch.ledger import Ledger
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
    ledger.follow(A.id, Tally(succeeded=20), 2, 0.0)
    assert tally_of(ledger, shard(succeeded=3), shard(number=1, succeeded=4), shard(B, succeeded=5)) == 27


def test_a_settled_shard_counts_once_and_somebody_is_told():
    ledger, told = Ledger(), []
    ledger.settled = told.append
    ledger.follow(A.id, Tally(), 0, 0.0)
    done = shard(succeeded=10)
    assert tally_of(ledger, done) == 10
    ledger.settle(done)
    assert (tally_of(ledger), ledger.shards_settled(A.id), told) == (10, 1, ["a"])


def test_what_a_shard_had_that_went_back_is_counted_until_it_is_in_hand_again():
    ledger = Ledger()
    ledger.follow(A.id, Tally(), 0, 0.0)
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
    ledger.follow(A.id, Tally(), 0, 0.0)
    ledger.forget(A.id)
    assert ledger.standings([shard()], 0.0) == {}


def test_rates_are_over_the_last_minute():
    ledger = Ledger()
    ledger.follow(A.id, Tally(), 0, 0.0)
    for second in range(121):
        ledger.sample(float(second))
        ledger.recorded(A.id, outcomes(1 if second < 60 else 3))
    standing = ledger.standings([], 120.0)[A.id]
    assert standing.rows_per_s == 183 / 60
    assert standing.tokens_per_s == 5 * 183 / 60


def test_what_was_found_in_journals_is_no_progress_of_this_run():
    ledger = Ledger()
    ledger.follow(A.id, Tally(), 0, 0.0)
    standing = ledger.standings([shard(succeeded=9)], 1.0)[A.id]
    assert (standing.tally.succeeded, standing.rows_per_s) == (9, 0.0)

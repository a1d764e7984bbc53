from dispatcher.dispatch.shards import ShardInHand, ShardsInHand
from dispatcher.model import ErrorCode, Job, JobId, Tally


def test_outcomes_become_durable_in_the_order_of_their_coming(make):
    shard = ShardInHand(make.lease(), 3, Tally(succeeded=1))
    for index, code in enumerate([None, ErrorCode.TIMEOUT, None]):
        shard.appended(make.outcome(index, code))
    assert [outcome.index for outcome in shard.recorded(2)] == [0, 1]
    assert (shard.owed, shard.unrecorded, shard.complete) == (1, 1, False)
    assert shard.tally == Tally(succeeded=2, failed=1, errors={"timeout": 1})
    assert [outcome.index for outcome in shard.recorded(1)] == [2]
    assert shard.complete


def test_a_shard_that_owes_nothing_is_complete(make):
    assert ShardInHand(make.lease(), 0, Tally()).complete


def test_shards_are_known_by_job_number_and_epoch(make):
    shards = ShardsInHand()
    ours, other_job = make.lease(3), make.lease(3, job=Job(JobId("other")))
    for lease in (ours, other_job):
        shards.add(ShardInHand(lease, 4, Tally()))
    assert len(shards) == 2
    assert shards.get(ours).lease is ours
    taken_over = make.lease(3, epoch=2)
    assert shards.get(taken_over) is None
    assert shards.of_earlier(taken_over).lease is ours
    assert shards.of_earlier(ours) is None
    shards.remove(taken_over)
    assert len(shards) == 2
    shards.remove(ours)
    assert [shard.lease for shard in shards] == [other_job]


def test_shards_may_be_removed_while_they_are_gone_through(make):
    shards = ShardsInHand()
    for number in range(5):
        shards.add(ShardInHand(make.lease(number), 4, Tally()))
    for shard in shards:
        shards.remove(shard.lease)
    assert len(shards) == 0

"""What nodes that share a queue in a database tell each other. Needs the fixture `sql`."""

from dataclasses import replace

import pytest
from sqlalchemy import update

from dispatcher.errors import CustodyLostError, JobMovedError
from dispatcher.model import Job, JobId, NodeId, Tally
from dispatcher.queue.custody import Custody
from dispatcher.queue.keeping import FileRecord
from dispatcher.queue.members import MemberKind, MemberRecord
from dispatcher.queue.nodes import JobFigures, NodeFigures, NodeIdentity, NodeState
from dispatcher.queue.records import JobStatus
from dispatcher.queue.schema import nodes

A, B, C = JobId("a"), JobId("b"), JobId("c")
FIRST = NodeIdentity(NodeId("node-a"), "gpu1", 17, "0.1.0", "http://gpu1:8080")
SECOND = NodeIdentity(NodeId("node-b"), "gpu2", 18, "0.1.0")


def job_ids(taken):
    return [custody.job_id for custody in taken]


# Nodes


async def test_nodes_see_each_other_with_their_figures_and_their_silence(sql):
    await sql.queue.nodes.register(FIRST)
    sql.clock.advance(5)
    await sql.queue.nodes.register(SECOND)
    assert await sql.queue.nodes.heartbeat(SECOND.id, NodeFigures(NodeState.DRAINING, 7, 3))
    first, second = await sql.queue.nodes.list()
    assert (first.identity, first.figures, first.silent_s) == (FIRST, NodeFigures(), 5)
    assert (second.identity, second.figures) == (SECOND, NodeFigures(NodeState.DRAINING, 7, 3))
    assert (second.started_at, second.silent_s) == (first.started_at + 5, 0)


async def test_nodes_tell_each_other_what_they_do_for_each_job(sql):
    in_hand = Tally(5, 2, 100, 50, {"timeout": 2})
    figures = NodeFigures(
        in_flight=9,
        rows_per_s=3.5,
        tokens_per_s=70,
        jobs={A: JobFigures(in_hand, 4, 2.5, 60, 60), B: JobFigures()},
        hungry=True,
    )
    await sql.queue.nodes.register(FIRST)
    assert await sql.queue.nodes.heartbeat(FIRST.id, figures)
    (told,) = await sql.queue.nodes.list()
    assert told.figures == figures


async def test_figures_of_another_version_are_read_as_far_as_they_are_known(sql):
    await sql.queue.nodes.register(FIRST)
    for work, rows_per_s in (
        ({"rows_per_s": 2, "mood": "good", "jobs": {"a": {"weather": 1}}}, 2),
        ({"jobs": []}, 0),
    ):
        async with sql.queue._database.write() as connection:
            await connection.execute(update(nodes).values(work=work))
        (told,) = await sql.queue.nodes.list()
        assert (told.identity, told.figures.rows_per_s) == (FIRST, rows_per_s)


async def test_a_node_that_was_forgotten_is_told_so_and_comes_in_again(sql):
    await sql.queue.nodes.register(FIRST)
    sql.clock.advance(30)
    assert await sql.queue.nodes.forget(31) == 0
    assert await sql.queue.nodes.forget(29) == 1
    assert not await sql.queue.nodes.heartbeat(FIRST.id, NodeFigures())
    await sql.queue.nodes.register(FIRST)
    await sql.queue.nodes.register(FIRST)
    assert len(await sql.queue.nodes.list()) == 1


async def test_what_a_node_held_is_free_when_it_goes(sql, shards, node, other):
    await sql.queue.nodes.register(FIRST)
    await sql.add("a", shards([4, 4, 4]))
    held = await sql.queue.lease(node, 8)
    await sql.queue.custody.take(node, A)
    others = await sql.queue.lease(other, 4)
    await sql.queue.nodes.remove(node)
    assert await sql.queue.nodes.list() == []
    assert await sql.queue.renew(node, held) == held
    assert [lease.epoch for lease in await sql.queue.lease(other, 8)] == [2, 2]
    assert await sql.queue.renew(other, others) == []
    assert job_ids(await sql.queue.custody.take_free(other, 9)) == [A]


async def test_going_twice_is_no_fault(sql, node):
    await sql.queue.nodes.remove(node)
    await sql.queue.nodes.remove(node)
    assert await sql.queue.nodes.list() == []


# Custody


async def test_a_job_is_driven_by_one_node_at_a_time(sql, node, other):
    await sql.queue.create_job(Job(A), {})
    custody = await sql.queue.custody.take(node, A)
    assert custody == Custody(A, node, 1)
    assert await sql.queue.custody.take(other, A) is None
    assert await sql.queue.custody.holders() == {A: node}


async def test_custody_lasts_until_its_time_and_not_longer(sql, node, other):
    await sql.queue.create_job(Job(A), {})
    held = await sql.queue.custody.take(node, A)
    sql.clock.advance(59.9)
    assert await sql.queue.custody.renew([held]) == []
    sql.clock.advance(59.9)
    assert await sql.queue.custody.take(other, A) is None
    sql.clock.advance(0.1)
    assert await sql.queue.custody.holders() == {}
    assert await sql.queue.custody.take(other, A) == Custody(A, other, 2)
    assert await sql.queue.custody.renew([held]) == [held]


async def test_a_node_that_takes_again_what_it_has_voids_its_earlier_custody(sql, node):
    await sql.queue.create_job(Job(A), {})
    earlier, later = [await sql.queue.custody.take(node, A) for _ in range(2)]
    assert await sql.queue.custody.renew([earlier, later]) == [earlier]


async def test_free_jobs_are_taken_the_oldest_first_and_no_more_than_wanted(sql, node, other):
    for job_id in (B, A, C):
        sql.clock.advance(1)
        await sql.queue.create_job(Job(job_id), {})
    await sql.queue.custody.take(other, A)
    assert job_ids(await sql.queue.custody.take_free(node, 1)) == [B]
    assert job_ids(await sql.queue.custody.take_free(node, 9)) == [C]
    assert await sql.queue.custody.take_free(node, 9) == []


async def test_a_released_job_is_free_at_once_and_a_lost_one_is_left_alone(sql, node, other):
    await sql.queue.create_job(Job(A), {})
    held = await sql.queue.custody.take(node, A)
    await sql.queue.custody.release([held])
    taken = await sql.queue.custody.take(other, A)
    await sql.queue.custody.release([held])
    assert await sql.queue.custody.renew([taken]) == []


async def test_an_ended_job_is_not_taken_until_it_is_offered_again(sql, node, other):
    await sql.queue.create_job(Job(A), {})
    held = await sql.queue.custody.take(node, A)
    await sql.queue.custody.retire(held)
    sql.clock.advance(1000)
    assert await sql.queue.custody.take_free(other, 9) == []
    assert await sql.queue.custody.take(node, A) is None
    assert await sql.queue.custody.holders() == {}
    for _ in range(2):
        await sql.queue.keeping.move(A, JobStatus.PREPARING, {}, wanted=True)
    assert await sql.queue.custody.take_free(other, 9) == [Custody(A, other, 2)]
    with pytest.raises(CustodyLostError, match="job a: the custody of node node-a"):
        await sql.queue.custody.retire(held)


async def test_there_is_no_custody_of_a_job_that_is_not_there(sql, node):
    assert await sql.queue.custody.take(node, A) is None
    assert await sql.queue.custody.take_free(node, 9) == []
    assert await sql.queue.custody.renew([]) == []


async def test_custody_goes_with_its_job(sql, node):
    await sql.queue.create_job(Job(A), {})
    held = await sql.queue.custody.take(node, A)
    await sql.queue.discard_job(A)
    assert await sql.queue.custody.renew([held]) == [held]
    await sql.queue.create_job(Job(A), {})
    assert await sql.queue.custody.take(node, A) == Custody(A, node, 1)


async def test_who_has_lost_custody_moves_nothing(sql, shards, node, other):
    keeping = sql.queue.keeping
    await sql.add("a", shards([4, 4]))
    lost = await sql.queue.custody.take(node, A)
    sql.clock.advance(60)
    held = await sql.queue.custody.take(other, A)
    made = [FileRecord("f", "ann", "f", "batch_output", 1, 1.0)]
    for late in (
        keeping.move(A, JobStatus.CANCELLED, {}, held=lost),
        keeping.conclude(A, JobStatus.FINISHED, {}, made=made, held=lost),
        keeping.clear(A, lost),
        sql.queue.add_shards(A, shards([4], first_number=2, first_index=8), lost),
        sql.queue.reopen(A, only_failed=False, held=lost),
    ):
        with pytest.raises(CustodyLostError):
            await late
    record = await sql.queue.job(A)
    assert (record.status, record.shards) == (JobStatus.ACTIVE, 2)
    assert await keeping.file_ids() == set()
    await keeping.conclude(A, JobStatus.FINISHED, {}, made=made, held=held)
    assert (await sql.queue.job(A)).status is JobStatus.FINISHED


async def test_custody_of_any_number_of_jobs_is_renewed_and_given_back(sql, node):
    await sql.queue.create_job(Job(A), {})
    held = await sql.queue.custody.take(node, A)
    others = [Custody(JobId(f"job {number}"), node, 1) for number in range(10_000)]
    assert await sql.queue.custody.renew([*others, held]) == others
    await sql.queue.custody.release([*others, held])
    assert await sql.queue.custody.holders() == {}


async def test_a_job_that_goes_on_meanwhile_is_not_retired(sql, node):
    await sql.queue.create_job(Job(A), {"stage": "completed"})
    held = await sql.queue.custody.take(node, A)
    await sql.queue.keeping.move(A, JobStatus.PREPARING, {"stage": "reopening"}, wanted=True)
    with pytest.raises(JobMovedError):
        await sql.queue.custody.retire(held, {"stage": "completed"})
    assert await sql.queue.custody.holders() == {A: node}


async def test_a_job_that_does_not_go_on_after_all_is_not_wanted(sql, node):
    await sql.queue.create_job(Job(A), {"stage": "completed"})
    await sql.queue.custody.retire(await sql.queue.custody.take(node, A), {"stage": "completed"})
    late = sql.queue.keeping.move(A, JobStatus.PREPARING, {}, before={"stage": "cancelled"}, wanted=True)
    with pytest.raises(JobMovedError):
        await late
    assert await sql.queue.custody.take_free(node, 9) == []


async def test_a_job_that_was_moved_meanwhile_is_not_deleted(sql):
    await sql.queue.create_job(Job(A), {"stage": "reopening"})
    with pytest.raises(JobMovedError):
        await sql.queue.keeping.discard(A, {"stage": "completed"})
    assert await sql.queue.job(A) is not None
    for _ in range(2):
        await sql.queue.keeping.discard(A, {"stage": "reopening"})
    assert await sql.queue.job(A) is None


async def test_knobs_are_changed_only_from_what_they_were_seen_to_be(sql):
    job, by_another = Job(A, priority=1), Job(A, priority=1, weight=2.0)
    await sql.queue.create_job(job, {}, priority=1)
    await sql.queue.keeping.change(by_another, 2.0, before=job)
    with pytest.raises(JobMovedError):
        await sql.queue.keeping.change(replace(job, priority=5), 1.0, before=job)
    assert (await sql.queue.job(A)).job == by_another
    both = replace(by_another, priority=5)
    for _ in range(2):  # its answer may have been lost
        await sql.queue.keeping.change(both, 2.0, before=by_another)
    assert (await sql.queue.job(A)).job == both


async def test_jobs_are_found_by_what_their_details_say(sql):
    for job_id, details in (
        (A, {"input": "f"}),
        (B, {"input": "g", "output": "f"}),
        (C, {"input": "f", "n": 1}),
    ):
        await sql.queue.create_job(Job(job_id), details)
    found = await sql.queue.keeping.details_with("input", "f")
    assert sorted(found, key=len) == [{"input": "f"}, {"input": "f", "n": 1}]
    assert await sql.queue.keeping.details_with("output", "h") == []


async def test_settled_shards_are_counted_of_open_jobs(sql, shards, node):
    for job_id in (A, B, C):
        await sql.add(job_id, shards([4]))
    for lease in await sql.queue.lease(node, 12):
        if lease.job.id != B:
            await sql.queue.settle(node, lease, Tally(4))
    await sql.queue.set_status(A, JobStatus.PAUSED)
    await sql.queue.set_status(C, JobStatus.FINISHED)
    assert await sql.queue.keeping.settled() == {A: 1, B: 0}


async def test_a_job_is_as_old_as_the_queue_says(sql):
    created_at = await sql.queue.create_job(Job(A), {})
    assert (await sql.queue.job(A)).created_at == created_at == sql.clock.wall()


# Members

ADDED = MemberRecord("http://gpu1:8000", MemberKind.ADDED, {"api_key": "k", "limit": 4})
REGISTERED = MemberRecord("http://gpu2:8000", MemberKind.REGISTERED, {}, "slurm")


async def test_members_are_kept_by_address_and_kind(sql):
    held_out = MemberRecord(ADDED.url, MemberKind.HELD_OUT)
    for record in (REGISTERED, held_out, ADDED):
        await sql.queue.members.put(record)
    assert await sql.queue.members.list() == [ADDED, held_out, REGISTERED]
    changed = MemberRecord(ADDED.url, MemberKind.ADDED, {"limit": 8})
    await sql.queue.members.put(changed)
    assert await sql.queue.members.remove(MemberKind.HELD_OUT, [ADDED.url, REGISTERED.url]) == 1
    assert await sql.queue.members.list() == [changed, REGISTERED]


async def test_a_member_with_a_time_is_gone_after_it_unless_it_is_put_again(sql):
    await sql.queue.members.put(ADDED)
    await sql.queue.members.put(REGISTERED, ttl_s=10)
    sql.clock.advance(9)
    await sql.queue.members.put(REGISTERED, ttl_s=10)
    sql.clock.advance(9)
    assert await sql.queue.members.list() == [ADDED, REGISTERED]
    assert await sql.queue.members.expire() == []
    sql.clock.advance(1)
    assert await sql.queue.members.list() == [ADDED]
    assert await sql.queue.members.expire() == [REGISTERED.url]
    assert await sql.queue.members.expire() == []


async def test_a_token_removes_only_what_it_registered(sql):
    await sql.queue.members.put(REGISTERED)
    assert await sql.queue.members.remove(MemberKind.REGISTERED, [REGISTERED.url], "other") == 0
    assert await sql.queue.members.remove(MemberKind.REGISTERED, [REGISTERED.url], "slurm") == 1


async def test_a_claim_gives_way_to_another_tokens_until_its_time_is_over(sql):
    rival = MemberRecord(REGISTERED.url, MemberKind.REGISTERED, {"limit": 1}, "rival")
    assert await sql.queue.members.claim(REGISTERED, 10)
    assert not await sql.queue.members.claim(rival, 10)
    sql.clock.advance(9)
    assert await sql.queue.members.claim(REGISTERED, 10)
    sql.clock.advance(9)
    assert not await sql.queue.members.claim(rival, 10)
    assert await sql.queue.members.list() == [REGISTERED]
    sql.clock.advance(1)
    assert await sql.queue.members.claim(rival, 10)
    assert await sql.queue.members.list() == [rival]


async def test_many_members_are_kept_at_once_and_in_place_of_what_was_kept(sql):
    many = [MemberRecord(f"http://n{number}:1", MemberKind.ADDED, {"limit": number}) for number in (3, 1, 2)]
    await sql.queue.members.put(MemberRecord("http://n2:1", MemberKind.ADDED, {"limit": 9}))
    await sql.queue.members.put_all(many)
    await sql.queue.members.put_all([])
    assert await sql.queue.members.list() == [many[1], many[2], many[0]]


def test_a_members_key_is_not_shown():
    assert "api_key" not in repr(ADDED)

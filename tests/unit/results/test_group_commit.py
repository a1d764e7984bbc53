"""What is written and synced when: decisions, told the time."""

import errno

import pytest

from dispatcher.ports import Recorded
from dispatcher.results.group_commit import GroupCommit, OpenShard, execute
from dispatcher.results.journal_file import JournalFile, OpenFiles


@pytest.fixture
def commits():
    return GroupCommit(sync_s=1.0)


@pytest.fixture
def shards(tmp_path, samples, disk):
    return [
        OpenShard(samples.lease(number), JournalFile(tmp_path / str(number), 0, disk)) for number in range(3)
    ]


@pytest.fixture
def run(commits, clock):
    """Carries a batch out, and tells what came of it."""

    def done(batch, sync_budget_s=1.0):
        return commits.done(batch, execute(batch, OpenFiles(10), clock, sync_budget_s))

    return done


def test_without_work_nothing_is_due(commits):
    assert commits.idle
    assert not commits.next(0.0).due


def test_what_is_appended_is_written_next_and_synced_when_a_second_has_passed(commits, shards, run):
    commits.append(shards[0], b"a\n")
    run(commits.next(0.0))
    commits.append(shards[0], b"b\n")
    first = commits.next(0.5)
    assert (first.writes, first.syncs) == ((shards[0],), ())
    assert run(first) == ([], [])
    assert commits.owing == 1
    assert not commits.next(0.99).due
    second = commits.next(1.0)
    assert (second.writes, second.syncs) == ((), (shards[0],))
    assert run(second) == ([Recorded(shards[0].lease, 1)], [])
    assert commits.idle


def test_a_shard_that_ends_is_synced_at_once_and_ahead_of_the_others(commits, shards, run):
    for shard in shards:
        commits.append(shard, b"a\n")
    commits.end(shards[2])
    batch = commits.next(0.0)
    assert batch.syncs == (shards[2], shards[0], shards[1])
    assert run(batch)[1] == [shards[2]]
    commits.append(shards[0], b"b\n")
    commits.end(shards[1])
    assert commits.next(0.1).syncs == (shards[1],)


def test_a_shard_without_outcomes_ends_too(commits, shards, run):
    commits.end(shards[0])
    assert not commits.idle
    assert run(commits.next(0.0)) == ([], [shards[0]])
    assert commits.idle


def test_an_outcome_that_comes_while_a_shard_ends_is_waited_for(commits, shards, clock):
    commits.append(shards[0], b"a\n")
    commits.end(shards[0])
    batch = commits.next(0.0)
    report = execute(batch, OpenFiles(10), clock, 1.0)
    commits.append(shards[0], b"b\n")
    assert commits.done(batch, report) == ([Recorded(shards[0].lease, 1)], [])
    batch = commits.next(0.1)
    report = execute(batch, OpenFiles(10), clock, 1.0)
    assert commits.done(batch, report) == ([Recorded(shards[0].lease, 1)], [shards[0]])


def test_syncs_that_do_not_fit_in_the_budget_are_next(commits, shards, run, disk):
    disk.sync_takes_s = 0.02
    for shard in shards:
        commits.append(shard, b"a\n")
    assert run(commits.next(0.0), 0.03)[0] == [Recorded(shard.lease, 1) for shard in shards[:2]]
    rest = commits.next(0.04)
    assert rest.syncs == (shards[2],)
    assert run(rest, 0.0)[0] == [Recorded(shards[2].lease, 1)]


@pytest.mark.parametrize("operation", ["append", "sync"])
def test_what_failed_is_in_the_next_batch(commits, shards, run, disk, operation):
    disk.fail(operation, errno.EIO)
    commits.append(shards[0], b"a\n")
    assert run(commits.next(0.0)) == ([], [])
    assert (commits.idle, commits.owing) == (False, 1)
    batch = commits.next(0.01)
    assert (batch.writes, batch.syncs) == ((shards[0],), (shards[0],))
    assert run(batch) == ([Recorded(shards[0].lease, 1)], [])


def test_a_report_tells_each_syncs_duration_and_each_error(commits, shards, clock, disk):
    disk.sync_takes_s = 0.25
    disk.fail("append", errno.ENOSPC, name="1")
    for shard in shards:
        commits.append(shard, b"a\n")
    report = execute(commits.next(0.0), OpenFiles(10), clock, 10.0)
    assert report.sync_seconds == (0.25, 0.25)
    assert [str(error) for error in report.errors] == [
        f"cannot write {shards[1].file.path}: No space left on device"
    ]

"""What several nodes do for the same jobs, put together."""

from types import SimpleNamespace

import pytest
from kept_jobs import kept_job

from dispatcher.dispatch.ledger import Ledger, Standing
from dispatcher.dispatch.shards import ShardInHand
from dispatcher.jobs import elsewhere as module
from dispatcher.jobs.elsewhere import Elsewhere, figures_of
from dispatcher.jobs.life import Stage
from dispatcher.model import Job, JobId, Lease, Shard, Tally
from dispatcher.queue.nodes import JobFigures, NodeFigures

A, B = JobId("a"), JobId("b")


def told(*others):
    elsewhere = Elsewhere()
    elsewhere.told(NodeFigures(jobs=jobs) for jobs in others)
    return elsewhere


def joined(elsewhere, ours, requests=100):
    jobs = {A: kept_job("a", requests=requests, owner="ann", stage=Stage.IN_PROGRESS)}
    return elsewhere.joined(ours, jobs)


def test_what_the_others_have_in_hand_is_added_up_with_what_is_here():
    elsewhere = told(
        {A: JobFigures(Tally(5, 1, 50, 20, {"timeout": 1}), 4, 1.5, 30, 60)},
        {A: JobFigures(Tally(2, 1, 20, 8, {"poison": 1}), 3, 0.5, 10, 20), B: JobFigures(in_flight=9)},
    )
    ours = Standing(Tally(40, 1, 400, 160, {"timeout": 1}), 4, 2.0, 40, 30, "torn")
    assert joined(elsewhere, {A: ours}) == {
        A: Standing(Tally(47, 3, 470, 188, {"poison": 1, "timeout": 2}), 4, 4.0, 80, 60, "torn")
    }
    assert elsewhere.in_flight == {A: 7, B: 9}


def test_without_others_everything_is_as_it_is_here():
    ours = {A: Standing(Tally(1))}
    assert joined(told(), ours) == ours


def test_jobs_that_are_not_followed_here_are_left_out():
    assert joined(told({A: JobFigures(Tally(5)), B: JobFigures(Tally(5))}), {}) == {}
    assert joined(told({B: JobFigures(Tally(5))}), {B: Standing(Tally(1))}) == {B: Standing(Tally(1))}


@pytest.mark.parametrize(("settled", "in_hand", "seen"), [(90, 10, 100), (90, 11, 90), (100, 8, 100)])
def test_more_than_all_rows_are_never_done(settled, in_hand, seen):
    """A shard that was settled since its node told is counted by the queue."""
    standing = joined(told({A: JobFigures(Tally(in_hand))}), {A: Standing(Tally(settled))})[A]
    assert standing.tally.succeeded == seen


def test_what_they_told_last_counts_and_nothing_before():
    elsewhere = told({A: JobFigures(Tally(5), 4)})
    elsewhere.told([])
    assert (elsewhere.in_flight, joined(elsewhere, {A: Standing(Tally(1))})) == ({}, {A: Standing(Tally(1))})


def lease(job, number):
    return Lease(Job(job), Shard(number, number * 8, 8, 0, 0), 1)


class FakeNode:
    """As much of a node as tells what it does."""

    def __init__(self, in_hand, in_flight):
        self.ledger = Ledger()
        shards = [ShardInHand(lease(job, number), 8, tally) for job, number, tally in in_hand]
        attempts = [
            SimpleNamespace(item=SimpleNamespace(lease=lease(job, 0)))
            for job, count in in_flight.items()
            for _ in range(count)
        ]
        self.desk = SimpleNamespace(
            shards=shards,
            open_attempts=lambda: attempts,
            in_flight=len(attempts),
            is_hungry=lambda: True,
        )


def test_a_node_tells_what_it_has_in_hand_by_job_and_its_own_rates():
    node = FakeNode([(A, 0, Tally(3)), (A, 1, Tally(2, 1)), (B, 0, Tally())], {A: 2})
    node.ledger.follow(A, Tally(50), 5, {})
    node.ledger.sample(0.0)
    node.ledger._accounts[A].rows = 30
    figures = figures_of(node, 60.0)
    assert figures == NodeFigures(
        in_flight=2,
        shards_leased=3,
        rows_per_s=0.5,
        hungry=True,
        jobs={A: JobFigures(Tally(5, 1), 2, 0.5, 0.0, 60.0), B: JobFigures()},
    )


def test_a_node_tells_of_so_many_jobs_those_with_the_most_in_flight_and_of_all_in_sum(monkeypatch):
    monkeypatch.setattr(module, "JOBS_TOLD_MAX", 2)
    node = FakeNode([], {JobId("one"): 1, JobId("two"): 2, JobId("three"): 3})
    figures = figures_of(node, 0.0)
    assert (set(figures.jobs), figures.in_flight) == ({"two", "three"}, 6)

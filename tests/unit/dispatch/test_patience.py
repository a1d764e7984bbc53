import asyncio

import pytest
from structlog.testing import capture_logs

from dispatcher.dispatch.patience import BACK_S, POLL_S, RETRY_S, SAY_EVERY_S, PatientQueue
from dispatcher.errors import LeaseLostError, QueueError, QueueUnreachableError, StorageError
from dispatcher.model import NodeId, QueueDepth, Tally


class Clock:
    def __init__(self):
        self.slept = []

    def now(self):
        return sum(self.slept)

    async def sleep(self, seconds):
        self.slept.append(seconds)


class Queue:
    """Answers every call with the next of `answers`, raising it if it is an error."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def _answer(self, *_):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    lease = renew = settle = release = depth = wait = _answer


def patient(*answers):
    clock = Clock()
    return PatientQueue(Queue(*answers), NodeId("n"), clock), clock


@pytest.fixture(params=[QueueError, QueueUnreachableError, StorageError])
def failure(request):
    return request.param("out of reach")


async def test_a_failure_is_an_obstacle_without_news_and_the_next_success_ends_it(failure, make):
    queue, _ = patient(failure, [make.lease()], failure, [], failure)
    assert await queue.lease(5) == ()
    assert queue.obstacle == "out of reach"
    assert await queue.lease(5) == [make.lease()]
    assert queue.obstacle is None
    assert await queue.renew([make.lease()]) == ()
    assert queue.obstacle == "out of reach"
    assert await queue.renew([make.lease()]) == ()
    await queue.release([make.lease()])
    assert queue.obstacle == "out of reach"


async def test_a_depth_that_is_not_known_is_not_drained(failure):
    queue, _ = patient(failure, QueueDepth(0, 1, 0, 0, 4, 0), QueueDepth(0, 0, 1, 0, 0, 4))
    assert [await queue.drained() for _ in range(3)] == [False, False, True]


async def test_a_settlement_is_told_until_it_is_heard(failure, make):
    queue, clock = patient(failure, failure, failure, None)
    await queue.settle(make.lease(), Tally())
    assert clock.slept == [RETRY_S] * 3
    assert queue.obstacle is None


async def test_a_failure_is_logged_at_once_and_then_every_minute_but_another_one_at_once(make):
    tries = int(2.5 * SAY_EVERY_S / RETRY_S)
    queue, _ = patient(*[QueueError("the disk is full")] * tries, QueueError("the database is gone"), None)
    with capture_logs() as logs:
        await queue.settle(make.lease(), Tally())
    assert [entry["error"] for entry in logs] == ["the disk is full"] * 3 + ["the database is gone"]


async def test_an_outage_that_the_queue_logs_itself_is_an_obstacle_and_not_logged_again(make):
    queue, _ = patient(QueueUnreachableError("the database is away"), [])
    with capture_logs() as logs:
        assert await queue.renew([make.lease()]) == ()
        assert queue.obstacle == "the database is away"
        await queue.renew([make.lease()])
    assert (queue.obstacle, logs) == (None, [])


async def test_a_lost_lease_is_no_obstacle(make):
    queue, clock = patient(LeaseLostError("taken over"))
    with pytest.raises(LeaseLostError):
        await queue.settle(make.lease(), Tally())
    assert (queue.obstacle, clock.slept) == (None, [])


async def test_after_an_outage_nothing_new_is_to_be_leased_for_a_while(failure):
    depth = QueueDepth(1, 0, 0, 4, 0, 0)
    queue, clock = patient(failure, failure, depth)
    assert not await queue.is_coming_back()
    await queue.lease(5)
    assert await queue.is_coming_back(), "it is away"
    assert await queue.is_coming_back(), "it has just come back"
    await clock.sleep(BACK_S - 0.5)
    assert await queue.is_coming_back()
    await clock.sleep(0.5)
    assert not await queue.is_coming_back()


async def test_a_failing_queue_is_not_listened_to_but_tried_again_after_a_pause(failure):
    queue, clock = patient(failure)
    await queue.lease(1)
    await queue.wait()
    assert clock.slept == [RETRY_S]


async def test_a_working_queue_says_itself_when_there_is_work():
    waits = []

    class Bell(Queue):
        async def wait(self, timeout_s):
            waits.append(timeout_s)

    await PatientQueue(Bell(), NodeId("n"), Clock()).wait()
    assert waits == [POLL_S]


async def test_cancellation_passes_through(make):
    queue, _ = patient(asyncio.CancelledError())

    class Hanging(Queue):
        async def lease(self, *_):
            await asyncio.sleep(3600)

    waiting = asyncio.create_task(PatientQueue(Hanging(), NodeId("n"), Clock()).lease(1))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert queue.obstacle is None

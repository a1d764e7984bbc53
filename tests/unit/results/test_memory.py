"""The recorder of the Python stream face: the consumer's pace is the recording's pace."""

import asyncio

import pytest

from dispatcher.results.memory import MemoryRecorder


@pytest.fixture
def recorder():
    return MemoryRecorder(capacity=2)


@pytest.fixture
async def lease(recorder, samples):
    lease = samples.lease()
    await recorder.open(lease, samples.requests(lease))
    return lease


async def test_outcomes_come_in_the_order_of_appending_and_end(recorder, lease, samples):
    for index in (2, 0, 1):
        recorder.append(lease, samples.success(index))
    recorder.end()
    assert [outcome.index async for outcome in recorder.outcomes()] == [2, 0, 1]


async def test_a_consumer_that_stops_can_be_followed_by_another(recorder, lease, samples):
    for index in range(3):
        recorder.append(lease, samples.success(index))
    taken = [(await anext(recorder.outcomes())).index]
    recorder.end()
    taken += [outcome.index async for outcome in recorder.outcomes()]
    assert taken == [0, 1, 2]


async def test_a_stream_without_outcomes_ends(recorder):
    recorder.end()
    assert [outcome async for outcome in recorder.outcomes()] == []


async def test_the_end_wakes_a_waiting_consumer(recorder):
    consumer = asyncio.create_task(anext(recorder.outcomes(), None))
    await asyncio.sleep(0)
    recorder.end()
    assert await asyncio.wait_for(consumer, 20) is None


async def test_an_outcome_is_recorded_when_it_is_taken_and_not_before(recorder, lease, samples):
    recorder.append(lease, samples.success(0))
    recorder.append(lease, samples.success(1))
    waiting = asyncio.create_task(recorder.recorded())
    await asyncio.sleep(0)
    assert not waiting.done()
    outcomes = recorder.outcomes()
    assert (await anext(outcomes)).index == 0
    assert [(note.lease, note.count) for note in await waiting] == [(lease, 1)]
    assert (await anext(outcomes)).index == 1
    assert len(await recorder.recorded()) == 1


async def test_a_full_recorder_is_an_obstacle_but_still_takes_what_comes(recorder, lease, samples):
    outcomes = recorder.outcomes()
    recorder.append(lease, samples.success(0))
    assert recorder.obstacle is None
    for index in (1, 2):
        recorder.append(lease, samples.success(index))
    assert recorder.obstacle == "3 outcomes wait to be taken"
    assert [(await anext(outcomes)).index for _ in range(2)] == [0, 1]
    assert recorder.obstacle is None


async def test_closing_waits_for_the_consumer(recorder, lease, samples):
    recorder.append(lease, samples.success(0))
    closing = asyncio.create_task(recorder.close(lease))
    await asyncio.sleep(0.005)
    assert not closing.done()
    await anext(recorder.outcomes())
    await asyncio.wait_for(closing, 20)


async def test_nothing_waits_for_a_consumer_that_has_left(recorder, lease, samples):
    for index in range(3):
        recorder.append(lease, samples.success(index))
    closing = asyncio.create_task(recorder.close(lease))
    await asyncio.sleep(0)
    recorder.abandon()
    recorder.append(lease, samples.success(3))
    await asyncio.wait_for(closing, 20)
    assert recorder.obstacle is None
    recorder.end()
    assert [outcome async for outcome in recorder.outcomes()] == []

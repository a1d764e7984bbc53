"""Processes that are stopped, and go on, or never do."""

import asyncio

from dispatcher.testing.simulation.nodes.processes import Process, ProcessLoop


def now():
    return asyncio.get_running_loop().time()


def in_processes(act):
    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        return runner.run(act(runner.get_loop()))


async def beat(ticks):
    while True:
        ticks.append(now())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(1.0))


def test_a_process_that_is_stopped_does_nothing_and_finds_the_time_passed():
    async def act(loop):
        process, ticks = Process("p"), []
        beating = loop.start(process, beat(ticks))
        loop.outside(2.5, lambda: loop.stop_process(process))
        loop.outside(10.25, lambda: loop.continue_process(process))
        await asyncio.sleep(12.0)
        beating.cancel()
        return ticks

    assert in_processes(act) == [0.0, 1.0, 2.0, 10.25, 11.25]


def test_other_processes_and_the_world_go_on_while_one_is_stopped():
    async def act(loop):
        stopped, other, ticks, beats = Process("p"), Process("q"), [], []
        tasks = [loop.start(stopped, beat(ticks)), loop.start(other, beat(beats))]
        loop.outside(0.5, lambda: loop.stop_process(stopped))
        await asyncio.sleep(3.5)
        loop.continue_process(stopped)
        for task in tasks:
            task.cancel()
        return ticks, beats

    assert in_processes(act) == ([0.0], [0.0, 1.0, 2.0, 3.0])


def test_what_ends_while_a_process_is_stopped_is_heard_when_it_goes_on():
    async def act(loop):
        process, answer, heard = Process("p"), loop.create_future(), []

        async def listen():
            heard.append((await answer, now()))

        loop.start(process, listen())
        loop.outside(1.0, lambda: loop.stop_process(process))
        loop.outside(2.0, lambda: answer.set_result("yes"))
        loop.outside(5.0, lambda: loop.continue_process(process))
        await asyncio.sleep(6.0)
        return heard

    assert in_processes(act) == [("yes", 5.0)]


def test_a_timer_that_was_cancelled_while_its_process_was_stopped_does_not_ring():
    async def act(loop):
        process, rung, timers = Process("p"), [], []

        async def set_one():
            timers.append(loop.call_later(1.0, rung.append, 1))

        loop.start(process, set_one())
        loop.outside(0.5, lambda: loop.stop_process(process))
        await asyncio.sleep(2.0)
        timers[0].cancel()
        loop.continue_process(process)
        await asyncio.sleep(1.0)
        return rung

    assert in_processes(act) == []

import asyncio
import threading

import pytest

from dispatcher.app.errand import Errand


async def test_work_is_done_in_a_thread_and_its_error_is_ones_own():
    assert await Errand().do(threading.current_thread) is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        await Errand().do(lambda: 1 / 0)


async def test_who_is_cancelled_has_the_work_ended_before():
    errand, begun, ended = Errand(), threading.Event(), threading.Event()

    def work():
        begun.set()
        try:
            for _ in range(10_000):
                errand.check()
                threading.Event().wait(0.005)
        finally:
            ended.set()

    doing = asyncio.create_task(errand.do(work))
    await asyncio.to_thread(begun.wait, 20)
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    assert ended.is_set()

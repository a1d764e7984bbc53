"""The blocking face: the same calls, from code without a loop."""

import asyncio
import inspect
import signal
import threading
import time

import pytest

from dispatcher import AsyncVLLMClient, ConfigError, VLLMClient
from dispatcher.portal import BlockingFace, blocking


def public(kind, wanted):
    return {
        name: member
        for name, member in inspect.getmembers(kind, wanted)
        if not name.startswith("_") and name not in {"run", "behind"}
    }


def test_every_public_coroutine_method_is_there_as_a_blocking_one_with_the_same_signature():
    methods = public(AsyncVLLMClient, inspect.iscoroutinefunction)
    assert {"generate", "batch_generate", "chat", "post", "tokenize", "load"} <= methods.keys()
    blocked = public(VLLMClient, inspect.isfunction)
    assert blocked.keys() == methods.keys()
    for name, method in methods.items():
        assert inspect.signature(blocked[name]) == inspect.signature(method)
        assert blocked[name].__doc__ == method.__doc__
        assert not inspect.iscoroutinefunction(blocked[name])


def test_both_faces_have_the_same_properties_and_are_made_from_the_same_arguments():
    def is_property(member):
        return isinstance(member, property)

    assert public(VLLMClient, is_property).keys() == public(AsyncVLLMClient, is_property).keys()
    made, behind = inspect.signature(VLLMClient), inspect.signature(AsyncVLLMClient)
    assert made.parameters == behind.parameters


def test_no_public_method_of_the_async_face_blocks():
    assert not [
        name
        for name, method in public(AsyncVLLMClient, inspect.isfunction).items()
        if not inspect.iscoroutinefunction(method)
    ]


def test_a_fault_of_the_arguments_is_raised_where_they_are_given():
    with pytest.raises(ConfigError, match="max_attempts"):
        VLLMClient("http://a:1", max_attempts=0)
    assert VLLMClient(["http://a:1", "http://b:1"]).servers == ["http://a:1", "http://b:1"]


def test_a_call_outside_of_with_says_what_to_do():
    client = VLLMClient("http://a:1")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="with"):
            client.generate("hello")
        with client:
            pass


class Thing:
    """Something async to stand behind a face."""

    def __init__(self):
        self.open = False
        self.began, self.cancelled = threading.Event(), threading.Event()

    async def __aenter__(self):
        self.open = True
        return self

    async def __aexit__(self, *_):
        self.open = False

    async def thread(self, *, plus=0):
        await asyncio.sleep(0)
        return threading.get_ident() + plus

    async def fail(self):
        raise LookupError("no")

    async def run_out(self, after_s):
        await asyncio.sleep(after_s)
        raise TimeoutError("of its own")

    async def wait(self):
        self.began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class Face(BlockingFace):
    thread = blocking(Thing.thread)
    fail = blocking(Thing.fail)
    run_out = blocking(Thing.run_out)
    wait = blocking(Thing.wait)


def test_calls_run_in_one_thread_that_is_not_the_callers():
    with Face(Thing()) as face:
        assert face.behind.open
        assert face.thread() == face.thread() != threading.get_ident()
        assert face.thread(plus=1) == face.thread() + 1
    assert not face.behind.open


def test_errors_come_out_as_they_are():
    with Face(Thing()) as face:
        with pytest.raises(LookupError, match="no"):
            face.fail()
        assert face.thread()


@pytest.mark.parametrize("after_s", [0, 0.05])
def test_a_call_is_waited_for_in_steps_and_its_own_timeout_is_its_own(after_s, monkeypatch):
    monkeypatch.setattr("dispatcher.portal.AWAKE_S", 0.01)
    with Face(Thing()) as face, pytest.raises(TimeoutError, match="of its own"):
        face.run_out(after_s)


def test_an_interrupted_call_is_cancelled():
    ended = False

    def interrupted(_signal, _frame):
        if not ended:
            raise KeyboardInterrupt

    def wait(face):
        nonlocal ended
        try:
            face.wait()
        finally:
            ended = True

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        with Face(Thing()) as face:
            thing = face.behind

            def interrupt():
                assert thing.began.wait(10)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                while not thing.cancelled.wait(10):  # lost once, on 3.11.2, and it is not known why
                    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

            thread = threading.Thread(target=interrupt, daemon=True)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                wait(face)
            thread.join(10)
            assert thing.cancelled.wait(10)
    finally:
        signal.signal(signal.SIGINT, before)


def test_several_threads_can_call_at_once():
    with Face(Thing()) as face:
        began, threads = time.monotonic(), []
        for _ in range(10):
            threads.append(threading.Thread(target=face.thread))
            threads[-1].start()
        for thread in threads:
            thread.join(10)
        assert time.monotonic() - began < 10


async def test_it_works_inside_of_a_running_loop():
    with Face(Thing()) as face:
        assert face.thread() != threading.get_ident()


def test_what_fails_to_open_leaves_no_thread_behind():
    class Broken(Thing):
        async def __aenter__(self):
            raise OSError("no")

    threads = threading.active_count()
    face = Face(Broken())
    with pytest.raises(OSError, match="no"), face:
        pass
    assert threading.active_count() == threads
    with pytest.raises(RuntimeError, match="with"):
        face.thread()

"""Processes in one virtual loop: each can be stopped as by SIGSTOP, and ended as by kill -9, at any await.

Everything that a process does runs in a context of its own (`contextvars`): its tasks, their timers, and what
they wait for. A process that is stopped runs none of it; what became due meanwhile runs, in order, when it
goes on, and finds the time passed. One that is killed never goes on.
"""

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from dispatcher.testing.simulation.virtual_loop import VirtualLoop

T = TypeVar("T")


class Process:
    """One process: stopped or not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopped = False
        self.due: list[asyncio.Handle] = []
        """What would have run since it was stopped."""


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class ProcessLoop(VirtualLoop):
    """A virtual loop whose callbacks belong to processes, or to the world outside."""

    def __init__(self) -> None:
        super().__init__()
        self._outside = Context()

    def start(self, process: Process, main: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a process's main task; whatever it starts belongs to the process as well."""
        context = copy_context()
        context.run(_PROCESS.set, process)
        return self.create_task(main, name=process.name, context=context)

    def stop_process(self, process: Process) -> None:
        """SIGSTOP: nothing of it runs from its next await on."""
        process.stopped = True

    def continue_process(self, process: Process) -> None:
        """SIGCONT: what became due runs now."""
        process.stopped = False
        due, process.due = process.due, []
        self._ready.extend(due)  # type: ignore[attr-defined]  # BaseEventLoop's queue of what runs next

    def outside(self, delay_s: float, act: Callable[[], object]) -> None:
        """Let something happen in the world outside: no process's being stopped holds it up."""
        self.call_later(delay_s, act, context=self._outside)

    def _call_soon(
        self, callback: Callable[..., object], args: tuple[object, ...], context: Context | None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See AbstractEventLoop."""
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001  # as BaseEventLoop does
        return timer


class World:
    """The part of a loop that simulated servers need. A client's being stopped holds up nothing here."""

    def __init__(self, loop: ProcessLoop) -> None:
        self._loop = loop
        self._context = Context()

    def time(self) -> float:
        """Virtual seconds."""
        return self._loop.time()

    def create_future(self) -> "asyncio.Future[Any]":
        """A future: whoever waits for it wakes in its own context."""
        return self._loop.create_future()

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        """As the loop's, outside of any process."""
        return self._loop.call_at(when, callback, *args, context=self._context)

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        """As the loop's, outside of any process."""
        return self.call_at(self._loop.time() + delay, callback, *args)


def _held(handle: asyncio.Handle) -> bool:
    """Keep what belongs to a stopped process for later."""
    process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]  # noqa: SLF001  # where it belongs
    if process is None or not process.stopped:
        return False
    process.due.append(handle)
    return True


class _Handle(asyncio.Handle):
    def _run(self) -> None:
        if not _held(self):
            super()._run()


class _TimerHandle(asyncio.TimerHandle):
    def _run(self) -> None:
        if not _held(self):
            super()._run()

"""An event loop whose time is virtual: it never sleeps, but jumps to the next timer.

Everything that runs on it is deterministic: there are no sockets and no threads (what is given to an executor
runs at once, in the loop), and tasks are hashed by their number, so that no set of tasks has an order that
depends on addresses.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

VIRTUAL_S_MAX = 1e7
"""Sixteen weeks. Later, a float's distance to the next one comes near the loop's resolution of 1 ns."""
WALL_AT_START = 1_750_000_000.0

T = TypeVar("T")


class DeadlockError(Exception):
    """Nothing is ready and no timer is set: the tasks named wait for what will never happen."""


class VirtualTimeError(Exception):
    """The simulation ran past its end of time: something in it goes round for ever."""


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop for one simulation, from virtual second 0 on. `steps` counts its turns."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self._now = 0.0
        self._tasks_made = 0
        self._selector = self  # BaseEventLoop waits for input with `self._selector.select(timeout)`
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]  # typeshed knows no settings, 3.13 gives them

    def time(self) -> float:
        """Virtual seconds since the simulation began."""
        return self._now

    def select(self, timeout: float | None) -> list[object]:
        """Let the time pass, where the loop would wait for input. There is never any."""
        self.steps += 1
        if timeout is None:
            raise DeadlockError(f"these wait for ever: {', '.join(self.waiting()) or 'no task at all'}")
        if timeout > 0:
            self._now += timeout
        if self._now > VIRTUAL_S_MAX:
            raise VirtualTimeError(f"more than {VIRTUAL_S_MAX:g} virtual seconds")
        return []

    def waiting(self) -> list[str]:
        """The names of the unfinished tasks, sorted."""
        return sorted(task.get_name() for task in asyncio.all_tasks(self))

    def run_in_executor(  # type: ignore[override]  # typeshed asks for an executor's future; any future will do
        self,
        executor: object,  # noqa: ARG002  # the signature overridden has it
        func: Callable[..., T],
        *args: Any,
    ) -> "asyncio.Future[T]":
        """Call the function now: what blocks takes no virtual time, and nothing runs beside the loop."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # whatever it raises is its caller's, as in a thread
            future.set_exception(error)
        return future

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T], **settings: Any
    ) -> "asyncio.Task[T]":
        self._tasks_made += 1
        return NumberedTask(coro, loop=loop, number=self._tasks_made, **settings)

    def _process_events(self, event_list: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody else could wake the loop: all is in its own thread."""


class NumberedTask(asyncio.Task[T]):
    """A task that is hashed by its number: TaskGroup goes through a set of tasks when it cancels them."""

    def __init__(self, coro: Coroutine[Any, Any, T], *, number: int, **settings: Any) -> None:
        self._number = number
        super().__init__(coro, **settings)

    def __hash__(self) -> int:
        return self._number


class VirtualClock:
    """`ports.Clock` on the running virtual loop, with a wall clock that can be set wrong."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._offset_s = WALL_AT_START

    def now(self) -> float:
        """Monotonic seconds: the loop's."""
        return self._loop.time()

    def wall(self) -> float:
        """Seconds since the epoch, as this machine believes."""
        return self._loop.time() + self._offset_s

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back; the monotonic one does not notice."""
        self._offset_s += seconds

    async def sleep(self, seconds: float) -> None:
        """Sleep in virtual time."""
        await asyncio.sleep(seconds)


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a simulation to its end on a loop of its own, and return what it returns.

    Raises what it raises, DeadlockError and VirtualTimeError. Tasks that are left over are cancelled.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)

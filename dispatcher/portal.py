"""One portal that gives any async object a blocking face: its methods, run in the loop of a thread."""

import functools
from asyncio import CancelledError
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from anyio import CancelScope
from anyio.from_thread import BlockingPortal, start_blocking_portal

AWAKE_S = 0.5
"""How often a waiting call looks for an interrupt that it has slept through."""

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Behind = TypeVar("_Behind", bound=AbstractAsyncContextManager[Any])


class BlockingFace(Generic[_Behind]):
    """The base of a blocking face. What is behind it lives in an event loop in a thread of its own.

    So it works inside a notebook's running loop, too, and any thread may call it. Use it as a context
    manager; calls outside of that raise RuntimeError. A call that is interrupted (Ctrl-C) is cancelled.
    """

    def __init__(self, behind: _Behind) -> None:
        self.behind = behind
        self._portal: BlockingPortal | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(portal.wrap_async_context_manager(self.behind))
            stack.callback(self._shut)
            self._portal, self._stack = portal, stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def run(self, work: Callable[[], Awaitable[_R]]) -> _R:
        """Await something in the loop, and wait for what comes of it."""
        if self._portal is None:
            raise RuntimeError(f"use a {type(self).__name__} as `with ... as client:`")
        call = _Call(work)
        try:
            return _awaited(self._portal.start_task_soon(call))
        except Exception:
            raise
        except BaseException:  # an interrupt, which may have come before the portal gave its future
            self._portal.start_task_soon(call.cancel)
            raise

    def _shut(self) -> None:
        self._portal = None


def _awaited(future: Future[_R]) -> _R:
    """The future's result, waited for in steps.

    An interrupt that comes in the instant before a thread falls asleep does not wake it: CPython sees it
    when the thread is next awake.
    """
    while True:
        try:
            return future.result(timeout=AWAKE_S)
        except TimeoutError:
            if future.done():  # it may be the call's own
                return future.result()


class _Call(Generic[_R]):
    """One call, and the means to end it: both are used in the loop only."""

    def __init__(self, work: Callable[[], Awaitable[_R]]) -> None:
        self._work = work
        self._scope: CancelScope | None = None
        self._cancelled = False

    async def __call__(self) -> _R:
        with CancelScope() as self._scope:
            if self._cancelled:
                self._scope.cancel()
            return await self._work()
        raise CancelledError

    def cancel(self) -> None:
        """End it, begun or not."""
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()


def blocking(
    method: Callable[Concatenate[_Behind, _P], Coroutine[Any, Any, _R]],
) -> Callable[Concatenate[BlockingFace[_Behind], _P], _R]:
    """A coroutine method as a blocking one, with the same arguments, result and documentation."""

    @functools.wraps(method)
    def call(self: BlockingFace[_Behind], /, *args: _P.args, **options: _P.kwargs) -> _R:
        return self.run(functools.partial(method, self.behind, *args, **options))

    return call


def iterating(
    method: Callable[Concatenate[_Behind, _P], AsyncGenerator[_R, None]],
) -> Callable[Concatenate[BlockingFace[_Behind], _P], Iterator[_R]]:
    """An async generator method as a plain one: each step enters the loop once.

    Leaving the iteration early closes the generator over there.
    """

    @functools.wraps(method)
    def call(self: BlockingFace[_Behind], /, *args: _P.args, **options: _P.kwargs) -> Iterator[_R]:
        items = method(self.behind, *args, **options)
        try:
            while True:
                try:
                    item = self.run(functools.partial(anext, items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self.run(items.aclose)

    return call


def arguments_of(
    kind: Callable[_P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]:
    """A decorator: this `__init__` takes the arguments of that class."""

    def mark(init: Callable[..., None]) -> Callable[Concatenate[Any, _P], None]:
        @functools.wraps(kind.__init__)
        def marked(self: Any, /, *args: _P.args, **options: _P.kwargs) -> None:
            init(self, *args, **options)

        return marked

    return mark

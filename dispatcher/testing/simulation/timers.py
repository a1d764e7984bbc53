"""What simulated servers need of an event loop."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol


class Timers(Protocol):
    """What a server needs of the event loop."""

    def time(self) -> float:
        """Virtual seconds."""

    def create_future(self) -> "asyncio.Future[Any]":
        """A future of that loop."""

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call at that time."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call after so many seconds."""

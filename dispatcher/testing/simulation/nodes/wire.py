"""A machine's connection to what several share: what is asked takes its time, and so does the answer."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import TypeVar

from dispatcher.errors import DispatcherError
from dispatcher.testing.simulation.nodes.scenario import Moment, Trouble
from dispatcher.testing.simulation.nodes.weather import Weather

T = TypeVar("T")
Outside = Callable[[float, Callable[[], object]], None]
"""Lets something happen after so many seconds, whether or not a process is stopped."""


class Wire:
    """Carries requests and answers. What is on its way when its node dies, or is stopped, still arrives.

    Args:
        weather: Says what is wrong with it, at this `place`.
        outside: Where requests travel.
        random: How long each takes: between these two `way_s`, there and back alike.
        cut: While this is wrong, nothing arrives.
        deaf: While this is wrong, no answer does.
        lost: The error that whoever asked has then.
    """

    def __init__(  # noqa: PLR0913  # its two ends, and what may happen between them
        self,
        weather: Weather,
        place: int,
        outside: Outside,
        random: Random,
        way_s: tuple[float, float],
        *,
        cut: Trouble,
        deaf: Trouble,
        lost: Callable[[], DispatcherError],
    ) -> None:
        self._weather = weather
        self._place = place
        self._outside = outside
        self._random = random
        self._way_s = way_s
        self._cut = cut
        self._deaf = deaf
        self._lost = lost

    @property
    def is_cut(self) -> bool:
        """Whether nothing arrives."""
        return self._weather.links[self._place].has(self._cut)

    async def reach(self, moment: Moment) -> None:
        """The node is about to do this: where it is stopped, or dies of it, it gets no further."""
        self._weather.reached(self._place, moment)
        await asyncio.sleep(0)

    async def ask(self, work: Callable[[], T], after: Moment | None = None) -> T:
        """Have this done at the other end, at one instant, and hear of it."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def arrive() -> None:
            told = self._told(work)
            if after is not None and not isinstance(told, DispatcherError):
                self._weather.reached(self._place, after)
            self._outside(self._random.uniform(*self._way_s), lambda: self._return(answer, told))

        self._outside(self._random.uniform(*self._way_s), arrive)
        return await answer

    def _told(self, work: Callable[[], T]) -> T | DispatcherError:
        if self.is_cut:
            return self._lost()
        try:
            return work()
        except DispatcherError as error:
            return error

    def _return(self, answer: "asyncio.Future[T]", told: T | DispatcherError) -> None:
        links = self._weather.links[self._place]
        if links.has(self._cut) or links.has(self._deaf):
            told = self._lost()
        if answer.done():
            return
        if isinstance(told, DispatcherError):
            answer.set_exception(told)
            answer.exception()  # a node that has died does not ask for it
        else:
            answer.set_result(told)

"""Makes requests take the time that the engine model says: the model's asynchronous shell."""

import asyncio

from dispatcher.testing.engine import Engine, EngineLoad, EngineSettings
from dispatcher.testing.flights import Flight


class Pace:
    """One engine at work in real time. Without settings every request is finished as soon as it starts."""

    def __init__(self, settings: EngineSettings | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine: Engine[int] | None = None if settings is None else Engine(settings, self._loop.time())
        self._kv_tokens = 0 if settings is None else settings.kv_tokens
        self._flights: dict[int, Flight] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._frozen = False

    def start(self, flight: Flight, prompt_tokens: int, output_tokens: int) -> None:
        """Give a request to the engine; its `ended` tells when it is done.

        A request of many prompts or choices counts as one sequence, at most as long as the cache.
        """
        if prompt_tokens + output_tokens == 0:
            flight.finish()  # the tokeniser's routes: the engine has no part in them
            return
        self._flights[flight.number] = flight
        if self._engine is not None:
            prompt_tokens = min(prompt_tokens, self._kv_tokens)
            output_tokens = min(output_tokens, self._kv_tokens - prompt_tokens)
            self._engine.submit(flight.number, prompt_tokens, output_tokens, self._loop.time())
            self._arm()
        elif not self._frozen:
            self._finish([flight.number])

    def abort(self, flight: Flight) -> None:
        """Forget a request, finished or not."""
        if self._flights.pop(flight.number, None) is not None and self._engine is not None:
            self._engine.abort(flight.number, self._loop.time())
            self._arm()

    def freeze(self, *, frozen: bool) -> None:
        """Stand still, or go on."""
        if frozen == self._frozen:
            return
        self._frozen = frozen
        if self._engine is not None:
            (self._engine.freeze if frozen else self._engine.thaw)(self._loop.time())
            self._arm()
        elif not frozen:
            self._finish(list(self._flights))

    def load(self) -> EngineLoad | None:
        """The engine's figures as of now; None without an engine."""
        if self._engine is None:
            return None
        self._finish(self._engine.advance(self._loop.time()))
        return self._engine.load()

    def close(self) -> None:
        """Stop the timer. Requests that are not finished stay so."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        """Set the timer to the model's next event."""
        self.close()
        at = None if self._engine is None else self._engine.next_event_at()
        if at is not None:
            self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        if self._engine is not None:
            self._finish(self._engine.advance(self._loop.time()))
            self._arm()

    def _finish(self, numbers: list[int]) -> None:
        for number in numbers:
            flight = self._flights.pop(number, None)
            if flight is not None:
                flight.finish()

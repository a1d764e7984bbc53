"""The Python face: a fleet in a script or a notebook, async first, with one portal for blocking code."""

import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Iterable,
    Mapping,
)
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from dispatcher.app.fleet import Fleet, open_fleet, open_metrics
from dispatcher.app.run import JobRun, Summary
from dispatcher.app.stream import Stream
from dispatcher.config import load_config
from dispatcher.errors import InputError
from dispatcher.model import Outcome, Request
from dispatcher.portal import BlockingFace, arguments_of, blocking, iterating
from dispatcher.request_line import LineFault, parse_request
from dispatcher.telemetry.logging import keep_to_warnings

RequestLike = Mapping[str, Any]
"""A request as in an OpenAI batch line: `custom_id`, `url`, `body`; `method` may be left out."""


class Dispatcher:
    """A fleet of servers to send requests to.

    >>> async with Dispatcher(servers=["http://gpu1:8000", "http://gpu[02-16]:8000"]) as d:
    ...     async for outcome in d.stream(requests):
    ...         print(outcome.custom_id, outcome.response)

    Args:
        servers: Base URLs, with or without `/v1`; ranges as in the configuration.
        config: A YAML file with any of the settings.
        settings: Sections of the settings tree, e.g. `pool={"limit": 64}`. They win over the file.

    Raises ConfigError with every fault of the settings.
    """

    def __init__(
        self,
        servers: Iterable[str | Mapping[str, Any]] = (),
        *,
        config: Path | str | None = None,
        **settings: Any,
    ) -> None:
        listed = list(servers)
        self._path = None if config is None else Path(config)
        self._overrides = {"servers": listed, **settings} if listed else settings
        self._config = load_config(self._path, self._overrides, os.environ)
        self._stack = AsyncExitStack()
        self._fleet: Fleet

    async def __aenter__(self) -> Self:
        keep_to_warnings()
        metrics = await self._stack.enter_async_context(open_metrics(self._config))
        self._fleet = await self._stack.enter_async_context(open_fleet(self._config, metrics))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()  # not told of the caller's error: a task group would wrap it in its own

    async def stream(
        self, requests: Iterable[RequestLike] | AsyncIterable[RequestLike]
    ) -> AsyncGenerator[Outcome, None]:
        """Send requests as they come and yield outcomes as they are ready, not in order.

        Each request has exactly one outcome; a failed one is an outcome with a `code`, not an exception.
        Requests are taken from the iterable no faster than outcomes are taken from here. Raises InputError
        for something that is no request.
        """
        stream = Stream(self._fleet, _parsed(requests))
        async with aclosing(stream.outcomes()) as outcomes:
            async for outcome in outcomes:
                yield outcome

    async def run_job(self, /, input: Path | str, output: Path | str, **run: Any) -> Summary:  # noqa: A002  # the command's own word
        """Answer a JSON lines file, as `dispatcher run` does; the same call goes on after any stop.

        `run` takes the settings of the section `run`, e.g. `errors`, `restart=True`, `model="m"`.
        """
        section = {**self._overrides.get("run", {}), **run, "output": str(output)}
        config = load_config(self._path, {**self._overrides, "run": section}, os.environ)
        return await JobRun(config, str(input), fleet=self._fleet).execute()


class BlockingDispatcher(BlockingFace[Dispatcher]):
    """The same for code without an event loop: every method of a Dispatcher, blocking.

    >>> with BlockingDispatcher(servers=["http://gpu1:8000"]) as d:
    ...     for outcome in d.stream(requests):
    ...         print(outcome.custom_id, outcome.response)

    It runs a Dispatcher in a thread of its own, so it works inside a notebook's running loop, too.
    """

    @arguments_of(Dispatcher)
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(Dispatcher(*args, **settings))

    stream = iterating(Dispatcher.stream)
    run_job = blocking(Dispatcher.run_job)


async def _parsed(requests: Iterable[RequestLike] | AsyncIterable[RequestLike]) -> AsyncIterator[Request]:
    index = 0
    async for request in _each(requests):
        yield _request(index, request)
        index += 1


async def _each(requests: Iterable[RequestLike] | AsyncIterable[RequestLike]) -> AsyncIterator[RequestLike]:
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request


def _request(index: int, request: RequestLike) -> Request:
    """Held to the rules of an input line, by way of one."""
    try:
        head = parse_request(msgspec.json.encode({"method": "POST", **request}))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InputError(f"request {index}: {error}") from error
    if isinstance(head, LineFault):
        raise InputError(f"request {index}: {head.message}")
    return Request(index, head.custom_id, head.url, head.model, head.body)

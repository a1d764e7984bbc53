"""The Python face: a fleet in a script or a notebook, async first, with one portal for blocking code."""

import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from dispatcher.app.extras import require_tables
from dispatcher.app.fleet import Fleet, open_fleet, open_metrics
from dispatcher.app.requests_file import RequestsFile
from dispatcher.app.run import JobRun, Summary
from dispatcher.app.stream import Stream
from dispatcher.config import Config, load_config
from dispatcher.errors import InputError
from dispatcher.model import Outcome, Request
from dispatcher.portal import BlockingFace, arguments_of, blocking, iterating
from dispatcher.request_line import LineFault, parse_request
from dispatcher.telemetry.logging import keep_to_warnings

if TYPE_CHECKING:
    from dispatcher.app.rows import Rows
    from dispatcher.app.steps import StepsSummary

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
        config = self._config_with("run", {}, {**run, "output": str(output)})
        return await JobRun(config, RequestsFile(config, str(input)), fleet=self._fleet).execute()

    async def annotate(  # each is a word of the question
        self,
        /,
        rows: "Rows",
        *,
        prompt: str | None = None,
        system: str | None = None,
        labels: Sequence[str] = (),
        schema: Mapping[str, Any] | None = None,
        valid: Callable[[Any], object] | None = None,
        model: str | None = None,
        **annotate: Any,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Ask about each row and yield it with the answers' columns, as they are ready and not in order.

        >>> async for row in d.annotate(rows, prompt="Is this positive? {{ text }}", labels=["yes", "no"]):
        ...     print(row["text"], row["answer"])

        Args:
            rows: Mappings; the name of a table: a file, a directory or a pattern; or a table in memory, of
                Arrow, pandas, polars or whatever else has Arrow's C stream interface.
            prompt: A Jinja2 template of the user's message, over a row's columns.
            system: One of the system message.
            labels: The only answers there are.
            schema: A JSON schema of the answers; each top-level property becomes a column.
            valid: Given each answer, a text or the values by name; raises ValueError for a bad one.
            model: What every request asks for; None: whatever a server has.
            annotate: Other settings of the section `annotate`, e.g. `temperature=0`, `prefix="label"`; not
                those that choose rows and columns.

        A row without a valid answer has `answer_error_code`, and is no exception. Nothing is kept on
        disk; for that there is `annotate_table`. Raises ConfigError, and InputError for a row that cannot be
        asked about.
        """
        require_tables()
        from dispatcher.app.rows import Question, annotated  # noqa: PLC0415  # it needs an extra

        section = {**annotate, "labels": list(labels)}
        config = self._config_with("annotate", section, {} if model is None else {"model": model})
        question = Question(prompt, system, schema, valid)
        async with aclosing(annotated(self._fleet, config, rows, question)) as answered:
            async for row in answered:
                yield row

    async def annotate_table(
        self,
        /,
        input: Path | str,  # noqa: A002  # the command's own word
        output: Path | str,
        *,
        valid: Callable[[Any], object] | None = None,
        **annotate: Any,
    ) -> "Summary | StepsSummary":
        """Annotate a table, as `dispatcher annotate` does; the same call goes on after any stop.

        `annotate` takes the settings of the section `annotate`, e.g. `prompt="prompt.md"`, `limit=9`: files
        are named, as on the command line. With `steps=[{...}, {...}]` it asks several questions in a row.
        `valid` is as with `annotate`; what was answered before a stop is not shown to it again.
        """
        require_tables()
        from dispatcher.app.steps import annotation  # noqa: PLC0415  # it needs an extra

        config = self._config_with("annotate", annotate, {"output": str(output)})
        return await annotation(config, str(input), self._fleet, valid).execute()

    def _config_with(self, section: str, settings: Mapping[str, Any], run: Mapping[str, Any]) -> Config:
        overrides = {
            **self._overrides,
            section: {**self._overrides.get(section, {}), **settings},
            "run": {**self._overrides.get("run", {}), **run},
        }
        return load_config(self._path, overrides, os.environ)


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
    annotate = iterating(Dispatcher.annotate)
    annotate_table = blocking(Dispatcher.annotate_table)


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

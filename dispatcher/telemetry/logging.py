"""Structured logs: an event's name and its fields, on one line, without secrets."""

import io
import logging
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

_REDACTED = "[redacted]"
_SECRET_KEYS = frozenset(
    {
        "api_key",
        "authorization",
        "cookie",
        "headers",
        "password",
        "proxy_authorization",
        "secret",
        "token",
        "x_api_key",
    }
)
_SECRET_TEXT = re.compile(r"(?i)(\b(?:bearer|basic)\s+)[\w.~+/=-]+|(?<=://)[^\s/?#]+(?=@)")
"""Credentials inside of longer texts: an Authorization header (RFC 6750, RFC 7617), or those of a URL, up
to the last `@` of its authority."""
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What a terminal obeys or ends a line at: C0, C1, Unicode's separators, and marks that turn text around."""
_OF_LINES = frozenset({"exception", "stack"})
"""Fields that are written below the line, on lines of their own."""


def configure_logging(
    log_format: Literal["console", "json"], log_level: str, stream: TextIO | None = None
) -> None:
    """Set up the process's logging; calling it again replaces what was set up before.

    Libraries that use the standard `logging` are written in the same format, from WARNING on. A stream that
    cannot be written to (a closed pipe, a full disk) loses lines, and never fails the caller.

    Args:
        log_format: `console` for people, `json` for one JSON object on each line. Times are ISO 8601, UTC.
        log_level: The lowest level written: `debug`, `info`, `warning` or `error`.
        stream: By default the standard error stream.
    """
    stream = stream or sys.stderr
    level = logging.getLevelNamesMapping()[log_level.upper()]
    renderers = _renderers(log_format, colors=stream.isatty())
    lines = cast("TextIO", _Lines(stream))
    _configure(lines, renderers, level)
    _adopt_libraries(lines, renderers, max(level, logging.WARNING))


def keep_to_warnings() -> None:
    """Where the host program has not set up structlog, write warnings and errors only, to standard error.

    For the Python face: structlog's own default writes every debug line to standard output.
    """
    if not structlog.is_configured():
        lines = cast("TextIO", _Lines(sys.stderr))
        _configure(lines, _renderers("console", colors=sys.stderr.isatty()), logging.WARNING)


def _configure(lines: TextIO, renderers: Sequence[Processor], level: int) -> None:
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *_processors(), redact, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(lines),
        cache_logger_on_first_use=False,
    )


def get_logger(part: str) -> FilteringBoundLogger:
    """The logger of a part of the dispatcher. It takes up the configuration when it is first used."""
    return cast("FilteringBoundLogger", structlog.get_logger(part=part))


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Blot out values under the names of secrets, and credentials inside of texts. A structlog processor."""
    return {key: _redacted(key, value) for key, value in event.items()}


def _redacted(key: object, value: object) -> object:
    if _is_secret(key):
        return _REDACTED
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has neither NaN nor infinity
    if isinstance(value, Mapping):
        return {str(name): _redacted(name, item) for name, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [_redacted(None, item) for item in value]
    return _SECRET_TEXT.sub(lambda match: f"{match[1] or ''}{_REDACTED}", str(value))


def _is_secret(key: object) -> bool:
    return isinstance(key, str) and key.lower().replace("-", "_") in _SECRET_KEYS


def _processors() -> list[Processor]:
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]


def _renderers(log_format: Literal["console", "json"], *, colors: bool) -> Sequence[Processor]:
    if log_format == "json":
        return (structlog.processors.JSONRenderer(),)
    console = structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0, sort_keys=False
    )
    return (_visible, console)


def _visible(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Write out control characters: a server's or a client's words reach the terminal of whoever looks."""
    return {
        key: _escaped(value, but="\n\t" if key in _OF_LINES else "") if isinstance(value, str) else value
        for key, value in event.items()
    }


def _escaped(text: str, but: str) -> str:
    return _CONTROLS.sub(
        lambda found: found[0] if found[0] in but else found[0].encode("unicode_escape").decode(), text
    )


class _Lines(io.TextIOBase):
    """A stream that loses what cannot be written: a job of days must not end with its terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except (OSError, ValueError):  # ValueError: closed
            return 0
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return


class _LibraryHandler(logging.StreamHandler[TextIO]):
    """Told apart by its class, so that a second set-up replaces the first."""


def _adopt_libraries(stream: TextIO, renderers: Sequence[Processor], level: int) -> None:
    handler = _LibraryHandler(stream)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[_without_quotation, structlog.stdlib.add_logger_name, *_processors()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, redact, *renderers],
    )
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for earlier in [kept for kept in root.handlers if isinstance(kept, _LibraryHandler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(level)


def _without_quotation(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Name what is no HTTP, without its traceback: aiohttp quotes it, be it a prompt or a key."""
    if not (raised := event.get("exc_info")):
        return event
    from aiohttp.http_exceptions import HttpProcessingError  # noqa: PLC0415  # a light command has no aiohttp

    if isinstance(raised[1], HttpProcessingError):
        return {**event, "exc_info": None, "error": type(raised[1]).__name__}
    return event

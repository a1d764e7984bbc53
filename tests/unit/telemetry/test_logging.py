"""Logs: their form, their levels, and what must never be in them."""

import io
import json
import logging
import re

import pytest
from aiohttp.http_exceptions import BadStatusLine

from dispatcher.telemetry.logging import configure_logging, get_logger

SECRET = "hunter2"  # noqa: S105  # it is looked for, not used


@pytest.fixture(autouse=True)
def logging_as_before():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture
def stream():
    return io.StringIO()


def logged(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_holds_the_event_its_fields_its_level_its_part_and_utc_time(stream):
    configure_logging("json", "info", stream)
    get_logger("pool").warning("server_evicted", server="http://a", reason="refused", deaths=2)
    (line,) = logged(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("timestamp"))
    assert line == {
        "event": "server_evicted",
        "level": "warning",
        "part": "pool",
        "server": "http://a",
        "reason": "refused",
        "deaths": 2,
    }


def test_a_console_line_is_plain_where_nobody_looks_at_colours(stream):
    configure_logging("console", "info", stream)
    get_logger("pool").info("server_active", server="http://a")
    assert re.fullmatch(r"\S+Z \[info\s*\] server_active +part=pool server=http://a\n", stream.getvalue())


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_text_with_line_ends_stays_on_one_line(stream, log_format):
    configure_logging(log_format, "info", stream)
    get_logger("vllm").info("answer_unreadable", detail="one\ntwo\r\nthree")
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_does_not_have_is_a_text(stream, number):
    configure_logging("json", "info", stream)
    get_logger("pool").info("measured", rate=number, of=[number])
    (line,) = logged(stream)
    assert (line["rate"], line["of"]) == (str(number), [str(number)])


@pytest.mark.parametrize("log", [get_logger("x"), logging.getLogger("aiohttp")], ids=["ours", "library"])
@pytest.mark.parametrize(
    "text", ["\x1b[2J\x1b]0;title\x07", "one\ntwo", "\x9b31m", "a\u2028b", "\u202etxt", "\x00"]
)
def test_a_terminal_obeys_nothing_that_is_logged(stream, log, text):
    configure_logging("console", "info", stream)
    log.warning(text)
    get_logger("x").info("said", reason=text)
    written = stream.getvalue()
    assert written.count("\n") == 2
    assert not set(text) & set(written) & set("\x00\x07\x1b\x9b\u2028\u202e")
    assert text.encode("unicode_escape").decode() in written


def test_a_traceback_keeps_its_lines_on_the_console_and_obeys_nothing_either(stream):
    configure_logging("console", "info", stream)
    try:
        fail("\x1b[2J")
    except ValueError:
        get_logger("x").exception("failed")
    assert '\n  File "' in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
    assert "ValueError: refused: \\x1b[2J" in stream.getvalue()


def test_events_below_the_level_are_not_written(stream):
    configure_logging("json", "warning", stream)
    log = get_logger("pool")
    for write in (log.debug, log.info, log.warning, log.error):
        write("happened")
    assert [line["level"] for line in logged(stream)] == ["warning", "error"]


def test_a_logger_made_before_the_set_up_follows_it_and_every_later_one(stream):
    log, later = get_logger("pool"), io.StringIO()
    configure_logging("json", "info", stream)
    log.info("first")
    configure_logging("json", "info", later)
    log.info("second")
    assert [[line["event"] for line in logged(s)] for s in (stream, later)] == [["first"], ["second"]]


@pytest.mark.parametrize("name", ["aiohttp.server", "sqlalchemy.engine", "alembic", "httpx2", "asyncio"])
def test_libraries_are_written_in_the_same_form_from_warning_on(stream, name):
    configure_logging("json", "debug", stream)
    logging.getLogger(name).info("chatter")
    logging.getLogger(name).warning("%s is odd", "this")
    (line,) = logged(stream)
    assert (line["event"], line["level"], line["logger"]) == ("this is odd", "warning", name)


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_what_is_no_http_is_not_quoted(stream, log_format):
    """A client that counts wrong sends the rest of its prompt as the next request's head."""
    configure_logging(log_format, "debug", stream)
    error = BadStatusLine("the patient has gout")
    logging.getLogger("aiohttp.server").error("Error handling request from %s", "10.0.0.7", exc_info=error)
    assert "BadStatusLine" in stream.getvalue()
    assert "10.0.0.7" in stream.getvalue()
    assert "gout" not in stream.getvalue()


def test_libraries_are_written_once_however_often_logging_is_set_up(stream):
    for _ in range(3):
        configure_logging("json", "error", stream)
    logging.getLogger("aiohttp").warning("quiet")
    logging.getLogger("aiohttp").error("loud")
    assert [line["event"] for line in logged(stream)] == ["loud"]


def fail(told=f"Bearer {SECRET}"):
    raise ValueError(f"refused: {told}")


LEAKS = {
    "a key": {"api_key": SECRET},
    "a header's name": {"X-API-Key": SECRET},
    "authorization": {"Authorization": SECRET},
    "headers": {"headers": (("X-Team", SECRET),)},
    "nested": {"server": {"id": "a", "options": [{"api-key": SECRET}]}},
    "bearer": {"detail": f"sent Authorization: bearer {SECRET} to a"},
    "basic": {"detail": f"Basic {SECRET}=="},
    "a url": {"url": f"http://user:{SECRET}@host/path"},
    "a url with an at sign in it": {"url": f"postgresql://user:p@{SECRET}@host/path?a=b@c"},
    "an exception": {"error": ValueError(f"Bearer {SECRET}")},
    "in a list": {"details": ["ok", f"Bearer {SECRET}"]},
    "bytes": {"body": f"Bearer {SECRET}".encode()},
}


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("fields", LEAKS.values(), ids=LEAKS)
def test_no_secret_is_written(stream, log_format, fields):
    configure_logging(log_format, "info", stream)
    get_logger("vllm").info("sent", **fields)
    assert SECRET not in stream.getvalue()
    assert "[redacted]" in stream.getvalue()


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("log", [get_logger("vllm"), logging.getLogger("aiohttp")], ids=["ours", "library"])
def test_no_secret_is_written_in_a_traceback_or_a_message(stream, log_format, log):
    configure_logging(log_format, "info", stream)
    try:
        fail()
    except ValueError:
        log.exception(f"failed with Bearer {SECRET}")  # noqa: G004  # a library may do so
    assert "in fail" in stream.getvalue()
    assert SECRET not in stream.getvalue()


def test_what_is_no_secret_is_left_as_it_is(stream):
    configure_logging("json", "info", stream)
    fields = {
        "prompt_tokens": 5,
        "url": "http://a:8000/v1",
        "share": 0.5,
        "ok": True,
        "none": None,
        "of": ["a", 1],
    }
    get_logger("vllm").info("answered", **fields)
    assert fields.items() <= logged(stream)[0].items()


class Full(io.StringIO):
    """A stream on a full disk."""

    def write(self, _text):
        raise OSError(28, "No space left on device")

    def flush(self):
        self.write("")


class ClosedLater(io.StringIO):
    """A stream that is open when logging is set up."""

    def isatty(self):
        self.close()
        return False


@pytest.mark.parametrize("stream", [Full(), ClosedLater()], ids=["full", "closed"])
def test_a_stream_that_cannot_be_written_to_fails_no_caller(stream, capsys):
    configure_logging("json", "info", stream)
    get_logger("pool").info("server_active")
    logging.getLogger("aiohttp").warning("odd")
    assert capsys.readouterr() == ("", "")

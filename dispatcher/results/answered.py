"""One line of an output or error file, read strictly."""

import re
from enum import IntEnum

import msgspec

from dispatcher.jsonl import Line

SUCCESSES = range(200, 300)


class Origin(IntEnum):
    """Which of the three files a line stands in."""

    INPUT = 0
    OUTPUT = 1
    ERRORS = 2


class Answered(msgspec.Struct, frozen=True, gc=False):
    """What verify needs of an outcome's line."""

    custom_id: str | None
    """None where the line is too damaged to tell."""
    fault: str | None
    """What is wrong with the line, or None."""


def read_answer(line: Line, origin: Origin) -> Answered:
    """Check an outcome's line: strict JSON in UTF-8, and the members that its file promises."""
    if line.content is None:
        return Answered(None, "the line is too long")
    if line.blank:
        return Answered(None, "the line is blank")
    try:
        if not line.content.isascii():
            line.content.decode()
        outcome = _decode(line.content)
    except UnicodeDecodeError as error:
        return Answered(
            None, f"not UTF-8: byte 0x{line.content[error.start]:02x} at column {error.start + 1}"
        )
    except (msgspec.MsgspecError, RecursionError) as error:
        return Answered(None, f"not an outcome in strict JSON: {error}")
    fault = _misplaced(outcome) if origin is Origin.OUTPUT else _unexplained(outcome)
    return Answered(outcome.custom_id, fault)


class _Response(msgspec.Struct, gc=False):
    status_code: int | None
    body: msgspec.Raw


class _Error(msgspec.Struct, gc=False):
    code: str
    message: str


class _Outcome(msgspec.Struct, gc=False):
    id: str
    custom_id: str
    response: _Response | None
    error: _Error | None


_OUTCOMES = msgspec.json.Decoder(_Outcome)
# Any escape; of those, group 1 is half of a surrogate pair without its other half.
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


def _decode(content: bytes) -> _Outcome:
    try:
        return _OUTCOMES.decode(content)
    except msgspec.DecodeError:
        # JSON allows a lone surrogate escape in an answer, msgspec does not.
        replaced = _ESCAPE.sub(lambda escape: rb"\ufffd" if escape[1] else escape[0], content)
        if replaced == content:
            raise
        return _OUTCOMES.decode(replaced)


def _misplaced(outcome: _Outcome) -> str | None:
    """What is wrong with a line of the output file."""
    if outcome.error is not None:
        return "an error stands in the output file"
    if outcome.response is None:
        return "response is null in the output file"
    if outcome.response.status_code not in SUCCESSES:
        return f"status_code {outcome.response.status_code} stands in the output file"
    return None if bytes(outcome.response.body).startswith(b"{") else "response.body is not an object"


def _unexplained(outcome: _Outcome) -> str | None:
    """What is wrong with a line of the error file."""
    return None if outcome.error is not None else "error is null in the error file"

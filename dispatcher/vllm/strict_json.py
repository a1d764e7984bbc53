"""Strict JSON on one line, without touching what need not be touched."""

import re
from typing import Final

import msgspec


def on_one_line(body: bytes) -> bytes:
    """Strict JSON without line ends. They can only stand between tokens, so most bodies stay as they are.

    Numbers keep their digits. Raises `msgspec.DecodeError` or RecursionError where it is not JSON after all.
    """
    return msgspec.json.format(body, indent=-1) if b"\n" in body or b"\r" in body else body


def checked(body: bytes) -> bytes | None:
    """The body as one line of strict JSON, without any repair; None where it is not that."""
    try:
        body.decode()
        return msgspec.json.format(body, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def repaired(body: bytes) -> bytes:
    """Put null for NaN and Infinity, and U+FFFD for lone surrogates: Python writes them, strict JSON has not.

    All else stays as it is, so what was broken in another way is still broken.
    """
    return _STRING_OR_CONSTANT.sub(_repair_token, body)


_STRING_OR_CONSTANT: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|-?Infinity|NaN', re.DOTALL)
_ESCAPE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole pair
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"  # a lone surrogate
    rb"|\\.",
    re.DOTALL,
)
_LONE_SURROGATE_BYTES: Final = 6


def _repair_token(match: re.Match[bytes]) -> bytes:
    token = match[0]
    return _ESCAPE.sub(_repair_escape, token) if token.startswith(b'"') else b"null"


def _repair_escape(match: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if len(match[0]) == _LONE_SURROGATE_BYTES else match[0]

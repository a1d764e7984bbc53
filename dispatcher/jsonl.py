r"""Lines and JSON text: what the input, the output and the error file have in common.

A line ends at `\n` and nowhere else: U+2028 and its like are characters.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NoReturn

import msgspec

CHUNK_BYTES = 1 << 20
"""How much of a file is read at a time."""
LINE_BYTES_MAX = 256 << 20
"""A longer line is never held in memory."""


class Line(msgspec.Struct, frozen=True, gc=False):
    """One line of a file."""

    number: int
    """From 1, blank lines counted, as editors do."""
    offset: int
    length: int
    """Bytes, the line end included."""
    content: bytes | None
    """Without the line end. None where it is longer than allowed."""

    @property
    def blank(self) -> bool:
        """Whether it holds nothing but white space."""
        return self.content is not None and is_blank(self.content)


def is_blank(content: bytes) -> bool:
    """Whether a line holds nothing but white space."""
    return not content or content.isspace()


def split_lines(chunks: Iterable[bytes], line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[Line]:
    r"""Cut a byte stream at `\n`, whatever the chunks' sizes. A byte order mark at its start is left out.

    A last line without its line end counts. A line of more than `line_bytes_max` bytes comes without its
    content. Memory: one chunk and one line.
    """
    carried = _Carried(line_bytes_max)
    number = 0
    offset, chunks = _skip_byte_order_mark(chunks)
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        carried.add(first)
        if not others:
            continue
        rest = others.pop()
        number, length = number + 1, carried.size + 1
        yield Line(number, offset, length, carried.complete())
        offset += length
        for content in others:
            number, length = number + 1, len(content) + 1
            yield Line(number, offset, length, content if length <= line_bytes_max else None)
            offset += length
        carried.add(rest)
    if carried.size:
        yield Line(number + 1, offset, carried.size, carried.complete())


def loads_strictly(text: str) -> object:
    """Decode JSON as the standard has it: no NaN, no Infinity. Every number becomes a float.

    Raises ValueError for what is not JSON and RecursionError for what is nested too deep.
    """
    return _STRICT.decode(text)


def raw_members(text: str) -> dict[str, str]:
    """The members of a JSON object that is known to be valid: each value as the text has it.

    Of keys that repeat the last counts.
    """
    spans: dict[str, str] = {}
    at = _after_space(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = _STRICT.raw_decode(text, at)
        start = _after_space(text, text.index(":", at) + 1)
        at = _STRICT.raw_decode(text, start)[1]
        spans[key] = text[start:at]
        at = _after_space(text, at)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return spans


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Whole numbers as floats: Python limits the digits of an int, JSON does not.
_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=float)
_SPACE = re.compile(r"[ \t\r\n]*")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _Carried:
    """The start of a line whose end is in a later chunk. Past the limit only its size is kept."""

    def __init__(self, line_bytes_max: int) -> None:
        self.size = 0
        self._bytes_max = line_bytes_max
        self._parts: list[bytes] = []

    def add(self, part: bytes) -> None:
        self.size += len(part)
        self._parts.append(part)
        if self.size >= self._bytes_max:
            self._parts.clear()

    def complete(self) -> bytes | None:
        """The whole line, or None where it is too long; then start anew."""
        whole = None if self.size >= self._bytes_max else b"".join(self._parts)
        self.size = 0
        self._parts.clear()
        return whole


def _skip_byte_order_mark(chunks: Iterable[bytes]) -> tuple[int, Iterator[bytes]]:
    chunks = iter(chunks)
    start = b""
    while len(start) < len(_BYTE_ORDER_MARK) and (chunk := next(chunks, b"")):
        start += chunk
    rest = start.removeprefix(_BYTE_ORDER_MARK)
    return len(start) - len(rest), chain((rest,), chunks)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at

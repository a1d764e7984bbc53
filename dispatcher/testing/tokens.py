"""The fake's tokeniser: words in pieces of at most four characters, each id holding its own bytes.

It has no vocabulary, so any text can be tokenised and joined again, and it shares two habits with real
tokenisers: a leading blank belongs to its word, and a long word is several tokens.
"""

import re
from collections.abc import Iterable, Sequence

_PIECE = re.compile(r" ?[!-~]{1,4}|.", re.DOTALL)
_MARK = b"\x01"  # keeps a piece's leading zero bytes apart from none


def pieces(text: str) -> list[str]:
    """The text in tokens; joined they are the text again."""
    return _PIECE.findall(text)


def count(text: str) -> int:
    """How many tokens the text is."""
    return len(pieces(text))


def encode(parts: Iterable[str]) -> list[int]:
    """Token ids of pieces. An id is below 2**48, so that it survives any JSON reader."""
    return [int.from_bytes(_MARK + part.encode()) for part in parts]


def decode(ids: Sequence[int]) -> list[str]:
    """The pieces of token ids. An id that `encode` never made gives a replacement character."""
    return [_piece(token) for token in ids]


def _piece(token: int) -> str:
    data = token.to_bytes((token.bit_length() + 7) // 8)
    return data.removeprefix(_MARK).decode(errors="replace")

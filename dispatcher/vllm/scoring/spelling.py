"""The texts of token paths, asked once."""

import asyncio
from collections.abc import Iterable
from typing import Final

from dispatcher.vllm.scoring.masked import Path
from dispatcher.vllm.scoring.prompts import detokenize, tokenize
from dispatcher.vllm.scoring.wire import Wire

KEPT_MAX: Final = 65_536
"""Paths kept: a set of labels has some hundreds."""
ASKED_MAX: Final = 16
"""Paths asked for at a time."""

_ANCHOR: Final = "a"
"""What stands before a path when its text is asked for: many tokenisers drop a blank at a text's beginning,
so that " good" alone reads as "good". A letter is no byte token, which bytes behind it could be joined to."""
_UNREADABLE: Final = "\0"


class Spellings:
    """What is known of one model's tokens. Labels are the same for many texts, and so are their tokens."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept: dict[Path, str] = {}
        self._kept_max = kept_max
        self._anchor: tuple[Path, str] | None = None

    async def of(self, wire: Wire, paths: Iterable[Path]) -> dict[Path, str]:
        """The text of each path behind another text. Raises what `wire` raises.

        A path that changes what is before it begins with a NUL, and fits no label.
        """
        if self._anchor is None:
            ids = await tokenize(wire, {"prompt": _ANCHOR, "add_special_tokens": False})
            self._anchor = ids, await detokenize(wire, ids)
        turns = asyncio.Semaphore(ASKED_MAX)
        anchor = self._anchor
        return dict(await asyncio.gather(*(self._one(wire, anchor, path, turns) for path in paths)))

    async def _one(
        self, wire: Wire, anchor: tuple[Path, str], path: Path, turns: asyncio.Semaphore
    ) -> tuple[Path, str]:
        if (text := self._kept.get(path)) is not None:
            return path, text
        ids, before = anchor
        async with turns:
            whole = await detokenize(wire, ids + path)
        text = whole[len(before) :] if whole.startswith(before) else f"{_UNREADABLE}{whole}"
        if len(self._kept) >= self._kept_max:
            self._kept.clear()
        self._kept[path] = text
        return path, text

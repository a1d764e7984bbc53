"""A batch's `completion_window`: `24h`, `90m`, `7d`."""

import re
from typing import Final

_WINDOW: Final = re.compile(r"([1-9][0-9]{0,5})([smhdw])")
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
WINDOW_S_MAX: Final = 366 * 86_400


def window_s(text: str) -> int | None:
    """Its seconds; None where it is no such thing, or more than a year."""
    found = _WINDOW.fullmatch(text)
    if found is None:
        return None
    seconds = int(found[1]) * _UNITS_S[found[2]]
    return seconds if seconds <= WINDOW_S_MAX else None

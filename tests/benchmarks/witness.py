"""Whether the machine runs evenly: `python witness.py`, until SIGTERM.

Does a small fixed piece of work again and again and times it by the processor time it takes, so that waiting
for a core does not count. Where the host of a virtual machine takes memory or the core itself away, the piece
takes many times as long although nobody else runs, and so does everything else. Prints such times at its end,
as JSON: `{"began": s, "ended": s, "slow": [[from, to], ...]}`, in seconds of `time.perf_counter`, which all
processes share.
"""

import json
import random
import signal
import sys
import time
from collections.abc import Sequence
from statistics import median

OBJECTS = 200_000
"""About 40 MB: it has to reach out to memory, as a service of this size does."""
LOOKS = 400
"""Of objects in one piece: about 0.2 ms."""
PAUSE_S = 0.004
SLOW = 2.5
"""Times its median that a piece takes where the machine is slow."""
APART_S = 0.05
"""Slow pieces that are no further apart are of one slow time."""


def main() -> None:
    """Watch until told to end."""
    objects = [[number] for number in range(OBJECTS)]
    looks = random.Random(1).choices(objects, k=LOOKS)
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    pieces: list[tuple[float, float]] = []
    while not ended:
        pieces.append(_piece(looks))
        time.sleep(PAUSE_S)
    found = {"began": pieces[0][0], "ended": time.perf_counter(), "slow": slow_times(pieces)}
    sys.stdout.write(json.dumps(found) + "\n")


def _piece(looks: Sequence[Sequence[int]]) -> tuple[float, float]:
    """When it began, and the processor time that it took."""
    at, began = time.perf_counter(), time.thread_time()
    sum(found[0] for found in looks)
    return at, time.thread_time() - began


def slow_times(pieces: Sequence[tuple[float, float]]) -> list[list[float]]:
    """From when to when the pieces took longer than they should."""
    usual = median(seconds for _, seconds in pieces)
    slow: list[list[float]] = []
    for (at, seconds), (after, _) in zip(pieces, [*pieces[1:], pieces[-1]], strict=True):
        if seconds <= SLOW * usual:
            continue
        if slow and at - slow[-1][1] <= APART_S:
            slow[-1][1] = after
        else:
            slow.append([at, after])
    return slow


if __name__ == "__main__":
    main()

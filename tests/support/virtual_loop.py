"""Virtual time for the unit tests of what awaits."""

import asyncio
import heapq


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time jumps to the next timer when nothing is ready, and that fails where none is left."""

    def __init__(self):
        super().__init__()
        self._virtual_now = 0.0

    def time(self):
        return self._virtual_now

    def _run_once(self):
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        if not self._ready:
            assert self._scheduled, "deadlock: nothing will ever happen again"
            self._virtual_now = max(self._virtual_now, self._scheduled[0].when())
        super()._run_once()

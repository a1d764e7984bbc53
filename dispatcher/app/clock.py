"""Real time."""

import asyncio
import time


class LoopClock:
    """The running event loop's clock: its monotonic time is the loop's, so that a virtual loop owns it."""

    def now(self) -> float:
        """Monotonic seconds of the running loop."""
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running loop."""
        await asyncio.sleep(seconds)

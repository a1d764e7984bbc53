"""Real time."""

import asyncio
import time


class SystemClock:
    """This machine's clock. `now` and `wall` may be asked from any thread: a metrics scrape runs in one."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running loop."""
        await asyncio.sleep(seconds)

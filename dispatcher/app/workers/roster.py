"""What becomes of workers that have died: started again after a while, or given up."""

import signal

DEATHS_MAX = 5
"""So many deaths of one worker, each within a minute of its start, and it is not started again."""
WELL_AFTER_S = 60.0
"""A worker that has lived so long was well: what was before is forgotten."""
BACKOFF_MIN_S = 0.5
BACKOFF_MAX_S = 30.0


class Roster:
    """Counts the deaths of each worker. Plain state, no clock."""

    def __init__(self) -> None:
        self._deaths: dict[int, int] = {}

    def died(self, number: int, lived_s: float) -> float | None:
        """After how many seconds to start it again; None where there is no sense in it."""
        deaths = 1 if lived_s >= WELL_AFTER_S else self._deaths.get(number, 0) + 1
        self._deaths[number] = deaths
        if deaths >= DEATHS_MAX:
            return None
        return min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** (deaths - 1))


def described(status: int) -> str:
    """A process's end in words. `status` is as `subprocess` has it: negative for a signal."""
    if status >= 0:
        return f"it ended with status {status}; its own last words are in the log"
    name = signal.Signals(-status).name if -status in signal.valid_signals() else str(-status)
    hint = ": killed by a user, or by the system for want of memory" if -status == signal.SIGKILL else ""
    return f"it was ended by {name}{hint}"

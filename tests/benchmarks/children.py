"""Programs run as children, on one core or on all, and what they took."""

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OUTPUT_BYTES_SHOWN = 4000


@dataclass(frozen=True, slots=True)
class Taken:
    """What one child took for its rows, from its start to its exit: Python's own start is in it."""

    rows: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int

    @property
    def rows_per_s(self) -> float:
        """Rows a second of wall time."""
        return self.rows / self.seconds

    @property
    def cpu_us_per_row(self) -> float:
        """Microseconds of processor time a row, the kernel's share included."""
        return self.cpu_seconds / self.rows * 1e6


def pin(core: int | None) -> None:
    """Keep this process to a core."""
    if core is not None:
        os.sched_setaffinity(0, {core})


def run_child(command: Sequence[str], rows: int, core: int | None, log: Path) -> Taken:
    """Run a program to its end, on `core` alone; None: on all there are. Its own children count.

    Raises RuntimeError, with its last words, where it fails.
    """
    began = time.perf_counter()
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: pin(core),  # noqa: PLW1509  # no threads are here
        )
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            child.kill()
            child.wait()
            raise
    seconds = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        words = log.read_bytes()[-OUTPUT_BYTES_SHOWN:].decode(errors="replace")
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}:\n{words}")
    return Taken(rows, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)

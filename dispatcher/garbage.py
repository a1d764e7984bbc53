"""The garbage collector of a dispatcher's own process, which makes nearly all its garbage without cycles."""

import gc

OBJECTS_MAX = 10_000
"""New objects before the collector looks for cycles among them. Python's own 700 has it look every 12 rows,
which took up to a fifth of the processor time and found next to nothing (docs/benchmarks.md)."""


def collect_rarely() -> None:
    """Look for cycles less often. For a program's start: a library does not decide this for its host."""
    gc.set_threshold(OBJECTS_MAX, *gc.get_threshold()[1:])


def spare_loaded() -> None:
    """Leave what is loaded now, modules above all, out of every later look.

    A look at all objects would stop the loop for a tenth of a second.
    """
    gc.freeze()

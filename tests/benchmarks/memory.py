"""Whether memory grows with the job."""

from bench import HEADING, Bench, Result, figures, summary

ROWS_BASE, ROWS_MANY = 100_000, 1_000_000
PEAK_MB_MAX = 200
GROWTH_MB_MAX = 20


def compare_memory(bench: Bench) -> Result:
    """Ten times the rows, and no more memory."""
    base, many = bench.dispatcher(ROWS_BASE), bench.dispatcher(ROWS_MANY)
    peak_mb, growth_mb = many.peak_bytes / 1e6, (many.peak_bytes - base.peak_bytes) / 1e6
    lines = [
        HEADING,
        *(summary("dispatcher run", [taken]) for taken in (base, many)),
        f"{ROWS_MANY:,} rows took {many.seconds:.0f} s, and {growth_mb:+.1f} MB more than {ROWS_BASE:,}",
    ]
    misses = []
    if peak_mb > PEAK_MB_MAX:
        misses.append(f"a peak of {peak_mb:.0f} MB; at most {PEAK_MB_MAX} are allowed")
    if growth_mb > GROWTH_MB_MAX:
        misses.append(f"{growth_mb:.0f} MB more for ten times the rows; at most {GROWTH_MB_MAX} are allowed")
    return Result({"base": figures(base), "many": figures(many), "growth_mb": growth_mb}, lines, misses)

"""What the comparisons share: the contenders on one core, and how their figures are shown."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from children import Taken, run_child
from ingest import write_rows
from instant_servers import MODEL

CONCURRENCY = 256
"""Requests in flight, over all servers."""
HEADING = f"{'':20}" + "".join(f"{name:>12}" for name in ("rows", "rows/s", "CPU us/row", "peak MB"))


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and against what everything is run."""

    folder: Path
    urls: Sequence[str]
    core: int

    def dispatcher(self, rows: int) -> Taken:
        """`dispatcher run`: from an input file to a durable output file."""
        output = self.folder / "out.jsonl"
        servers = [argument for url in self.urls for argument in ("--server", url)]
        limit = ["--concurrency", str(CONCURRENCY // len(self.urls))]
        command = ["dispatcher", "run", str(self._input(rows)), "-o", str(output), "--restart"]
        taken = self._run([sys.executable, "-m", *command, *servers, *limit, "--log-format", "json"], rows)
        with output.open("rb") as lines:
            answered = sum(1 for _ in lines)
        assert answered == rows, f"{answered} of {rows} rows have an answer"
        return taken

    def contender(self, script: str, rows: int) -> Taken:
        """The same rows through another client: a script beside this one."""
        path = Path(__file__).with_name(script)
        arguments = [str(path), str(self._input(rows)), str(CONCURRENCY), *self.urls]
        return self._run([sys.executable, *arguments], rows)

    def _input(self, rows: int) -> Path:
        path = self.folder / f"input-{rows}.jsonl"
        if not path.exists():
            write_rows(path, rows, MODEL)
        return path

    def _run(self, command: Sequence[str], rows: int) -> Taken:
        return run_child(command, rows, self.core, self.folder / "child.log")


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one comparison, and what they miss."""

    figures: Mapping[str, object]
    lines: Sequence[str]
    misses: Sequence[str]


def summary(name: str, runs: Sequence[Taken]) -> str:
    """One line of the table: medians, and the largest peak."""
    cells = (
        f"{runs[0].rows:,}",
        f"{median(taken.rows_per_s for taken in runs):,.0f}",
        f"{median(taken.cpu_us_per_row for taken in runs):,.0f}",
        f"{max(taken.peak_bytes for taken in runs) / 1e6:.0f}",
    )
    return f"{name:20}" + "".join(f"{cell:>12}" for cell in cells)


def figures(taken: Taken) -> dict[str, float]:
    """One run, for JSON."""
    return {
        "rows": taken.rows,
        "seconds": round(taken.seconds, 3),
        "rows_per_s": round(taken.rows_per_s, 1),
        "cpu_us_per_row": round(taken.cpu_us_per_row, 1),
        "peak_mb": round(taken.peak_bytes / 1e6, 1),
    }

"""Rows a second by workers, against instant servers: `python tests/benchmarks/workers.py`.

Prints a table; see docs/benchmarks.md. `--check` exits with 1 where two workers are not fast enough.
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from children import Taken, run_child
from ingest import write_rows
from instant_servers import MODEL, instant_servers, nginx_path

SERVERS = 4
CONCURRENCY = 256
"""Requests in flight, over all servers and workers."""
RATIO_MIN = 1.6
"""Of two workers to one, on two cores that the servers take their part of as well."""


def main() -> None:
    """Measure in turn, print, and tell by the exit status whether two workers are fast enough."""
    options = _options()
    if nginx_path() is None:
        sys.stdout.write("skipped: nginx is not installed (apt-get install nginx-light)\n")
        raise SystemExit(1 if os.environ.get("DISPATCHER_REQUIRE_SERVICES") else 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # and leave no server or dispatcher behind
    with (
        tempfile.TemporaryDirectory(prefix="dispatcher-workers-") as name,
        instant_servers(Path(name), SERVERS, None) as urls,
    ):
        folder = Path(name)
        write_rows(folder / "in.jsonl", options.rows, MODEL)
        pairs = [
            [_run(folder, urls, options.rows, workers) for workers in (1, 2)] for _ in range(options.repeat)
        ]
        servers_us = _children_cpu_s() / (2 * options.repeat * options.rows) * 1e6
    ratio = median(two.rows_per_s / one.rows_per_s for one, two in pairs)
    allowed = median(2 * one.cpu_us_per_row / (two.cpu_us_per_row + servers_us) for one, two in pairs)
    for workers, runs in enumerate(zip(*pairs, strict=True), 1):
        sys.stdout.write(f"{_line(workers, runs)}\n")
    sys.stdout.write(
        f"the servers: {servers_us:.0f} us of CPU a row\n"
        f"two workers by one, pair by pair, median: {ratio:.2f}; by processor time, were nothing else on two "
        f"cores: {allowed:.2f}\n"
    )
    if options.check and ratio < RATIO_MIN:
        sys.stderr.write(f"missed: {ratio:.2f}; at least {RATIO_MIN} is asked for\n")
        raise SystemExit(1)


def _children_cpu_s() -> float:
    """What the children that live, the servers, have taken."""
    children = Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
    stats = [Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split() for child in children]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


def _run(folder: Path, urls: Sequence[str], rows: int, workers: int) -> Taken:
    output = folder / "out.jsonl"
    servers = [argument for url in urls for argument in ("--server", url)]
    options = ["--concurrency", str(CONCURRENCY // len(urls)), "--workers", str(workers), "--restart"]
    command = ["dispatcher", "run", str(folder / "in.jsonl"), "-o", str(output), *servers, *options]
    arguments = [sys.executable, "-m", *command, "--log-format", "json"]
    taken = run_child(arguments, rows, None, folder / "child.log")
    with output.open("rb") as lines:
        answered = sum(1 for _ in lines)
    assert answered == rows, f"{answered} of {rows} rows have an answer"
    return taken


def _line(workers: int, runs: Sequence[Taken]) -> str:
    rows_per_s = median(taken.rows_per_s for taken in runs)
    cpu_us = median(taken.cpu_us_per_row for taken in runs)
    return f"{workers} worker{'s' * (workers > 1)}: {rows_per_s:,.0f} rows/s, {cpu_us:,.0f} us of CPU a row"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="default: 200,000")
    parser.add_argument("--repeat", type=int, default=1, help="pairs of runs; default: 1")
    parser.add_argument("--check", action="store_true", help=f"ask for {RATIO_MIN} times the rows a second")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""What the dispatcher costs a row, against instant servers: `python tests/benchmarks/overhead.py`.

Prints a table; see docs/benchmarks.md. Exits with 1 where a limit that was asked for is missed.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from bench import Bench
from instant_servers import instant_servers, nginx_path
from memory import compare_memory
from speed import compare_speed

SERVERS = 4


def main() -> None:
    """Measure, print, and tell by the exit status whether the limits are kept."""
    options = _options()
    if nginx_path() is None:
        sys.stdout.write("skipped: nginx is not installed (apt-get install nginx-light)\n")
        raise SystemExit(1 if os.environ.get("DISPATCHER_REQUIRE_SERVICES") else 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # and leave no server or dispatcher behind
    cores = sorted(os.sched_getaffinity(0))
    with (
        tempfile.TemporaryDirectory(prefix="dispatcher-overhead-") as name,
        instant_servers(Path(name), SERVERS, cores[-1]) as urls,
    ):
        bench = Bench(Path(name), urls, cores[0])
        if options.million:
            result = compare_memory(bench)
        else:
            result = compare_speed(bench, options.rows, options.repeat, options.assert_ratio)
    sys.stdout.write((json.dumps(result.figures) if options.json else "\n".join(result.lines)) + "\n")
    sys.stderr.write("".join(f"missed: {miss}\n" for miss in result.misses))
    raise SystemExit(1 if result.misses else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="default: 20,000")
    parser.add_argument("--repeat", type=int, default=3, help="pairs of runs; default: 3")
    parser.add_argument("--assert-ratio", type=float, help="the least share of the bare client's rows/s")
    parser.add_argument("--million", action="store_true", help="compare the memory of 1,000,000 rows instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()

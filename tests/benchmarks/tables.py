"""A Parquet table against the equal requests file: `python tests/benchmarks/tables.py`.

`annotate` and `run` against instant servers, each on one core. Prints rows a second and peak memory.
See docs/benchmarks.md.
With `--assert`, exits with 1 where the table is slower than 0.7 of the file, or takes more than 300 MB.
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from bench import CONCURRENCY, HEADING, Bench, summary
from children import Taken, run_child
from instant_servers import MODEL, instant_servers, nginx_path

SERVERS = 4
SHARE_MIN = 0.7
PEAK_MB_MAX = 300
ROWS_AT_ONCE = 50_000
PROMPT = "Is the following review positive, negative or neutral? Answer with one word.\n\n{{ text }}"
TEXT = "Review {}: I bought this screen three weeks ago and would buy it again; the stand could be better."


def main() -> None:
    """Measure, print, and tell by the exit status whether the limits are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="default: 20,000")
    parser.add_argument("--assert", dest="asserts", action="store_true", help="hold the limits")
    options = parser.parse_args()
    if nginx_path() is None:
        sys.stdout.write("skipped: nginx is not installed (apt-get install nginx-light)\n")
        raise SystemExit(1 if os.environ.get("DISPATCHER_REQUIRE_SERVICES") else 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    cores = sorted(os.sched_getaffinity(0))
    with (
        tempfile.TemporaryDirectory(prefix="dispatcher-tables-") as name,
        instant_servers(Path(name), SERVERS, cores[-1]) as urls,
    ):
        bench = Bench(Path(name), urls, cores[0])
        table, file = annotate(bench, options.rows), bench.dispatcher(options.rows)
    share, peak_mb = table.rows_per_s / file.rows_per_s, table.peak_bytes / 1e6
    lines = [HEADING, summary("annotate", [table]), summary("run", [file]), f"{share:.2f} of run's speed"]
    sys.stdout.write("\n".join(lines) + "\n")
    missed = share < SHARE_MIN or peak_mb > PEAK_MB_MAX
    raise SystemExit(1 if options.asserts and missed else 0)


def annotate(bench: Bench, rows: int) -> Taken:
    """From a Parquet table to a durable Parquet table."""
    source, output, prompt = (bench.folder / name for name in ("in.parquet", "out.parquet", "prompt.md"))
    write_table(source, rows)
    prompt.write_text(PROMPT)
    servers = [argument for url in bench.urls for argument in ("--server", url)]
    limit = ["--concurrency", str(CONCURRENCY // len(bench.urls)), "--model", MODEL, "--log-format", "json"]
    command = ["dispatcher", "annotate", str(source), "-o", str(output), "--prompt", str(prompt)]
    taken = run_child(
        [sys.executable, "-m", *command, *servers, *limit], rows, bench.core, bench.folder / "child.log"
    )
    answered = pq.read_metadata(output).num_rows
    assert answered == rows, f"{answered} of {rows} rows have an answer"
    return taken


def write_table(path: Path, rows: int) -> None:
    """A number, a text and a small column."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("stars", pa.int8())])
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, rows, ROWS_AT_ONCE):
            numbers = range(first, min(rows, first + ROWS_AT_ONCE))
            columns = [
                numbers,
                [TEXT.format(number) for number in numbers],
                [number % 5 for number in numbers],
            ]
            writer.write_table(
                pa.table([pa.array(cells) for cells in columns], ["id", "text", "stars"]).cast(schema)
            )


if __name__ == "__main__":
    main()

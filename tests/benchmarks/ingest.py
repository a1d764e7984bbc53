"""How fast the whole ingest pass is: `python tests/benchmarks/ingest.py [ROWS]` prints lines a second."""

import json
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from dispatcher.ingest.scan import scan


@dataclass(frozen=True, slots=True)
class Ingested:
    """What one pass took."""

    rows: int
    bytes: int
    shards: int
    seconds: float
    """Of one core."""

    @property
    def rows_per_s(self) -> float:
        """Lines a second."""
        return self.rows / self.seconds


def main() -> None:
    """Measure, and print the figures."""
    taken = measure_ingest(int(sys.argv[1]) if len(sys.argv) > 1 else 400_000)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(
        f"{taken.rows} lines of {taken.bytes // taken.rows} bytes, {taken.shards} shards: "
        f"{taken.seconds:.2f} s of one core, {taken.rows_per_s:,.0f} lines/s, "
        f"{taken.bytes / taken.seconds / 1e6:.0f} MB/s, peak memory {peak_mib:.0f} MiB\n"
    )


def measure_ingest(rows: int) -> Ingested:
    """Write chat requests of about 250 bytes, and scan them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.jsonl"
        write_rows(path, rows)
        started = time.process_time()
        report = scan(path, Path(folder), lambda _shards: None)
        seconds = time.process_time() - started
    return Ingested(report.rows, report.bytes, report.shards, seconds)


def write_rows(path: Path, rows: int, model: str = "m") -> None:
    """Write chat requests that differ only in their ids."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Which label fits this review? " + "word " * 12}],
        "max_tokens": 16,
    }
    tail = f'", "method": "POST", "url": "/v1/chat/completions", "body": {json.dumps(body)}}}\n'
    with path.open("w") as file:
        file.writelines(f'{{"custom_id": "request-{row}{tail}' for row in range(rows))


if __name__ == "__main__":
    main()

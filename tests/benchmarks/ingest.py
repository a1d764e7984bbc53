"""How fast the whole ingest pass is: `python tests/benchmarks/ingest.py [ROWS]` prints lines a second."""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from dispatcher.ingest.scan import scan


def main() -> None:
    """Write ROWS (default 400,000) chat requests of about 250 bytes, scan them, and print the figures."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.jsonl"
        write_rows(path, rows)
        started = time.process_time()
        report = scan(path, Path(folder), lambda _shards: None)
        seconds = time.process_time() - started
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(
        f"{report.rows} lines of {report.bytes // rows} bytes, {report.shards} shards: "
        f"{seconds:.2f} s of one core, {report.rows / seconds:,.0f} lines/s, "
        f"{report.bytes / seconds / 1e6:.0f} MB/s, peak memory {peak_mib:.0f} MiB\n"
    )


def write_rows(path: Path, rows: int) -> None:
    """Write chat requests that differ only in their ids."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Which label fits this review? " + "word " * 12}],
        "max_tokens": 16,
    }
    tail = f'", "method": "POST", "url": "/v1/chat/completions", "body": {json.dumps(body)}}}\n'
    with path.open("w") as file:
        file.writelines(f'{{"custom_id": "request-{row}{tail}' for row in range(rows))


if __name__ == "__main__":
    main()

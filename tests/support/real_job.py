"""`dispatcher run` as a process of its own, watched through what it shows to everyone: files and metrics."""

import json
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

import httpx2
from real_rows import Row, write_rows
from vllm_fleet import Samples, VllmServer, free_port, scrape, until

CONCURRENCY = 8
PROBE_EVERY_S, PROBE_TIMEOUT_S = 1, 2
_CONFIG = f"""\
pool:
  limit: {CONCURRENCY}
  stall_s: %g
  canary: %s
  probe_interval_s: {PROBE_EVERY_S}
  probe_timeout_s: {PROBE_TIMEOUT_S}
  scrape_interval_s: {PROBE_EVERY_S}
  readmit_backoff_max_s: 4
results:
  sync_s: 0.2
dispatch:
  hedge: %s
"""


class RealJob:
    """One job's files, and the process that works on it. The same command goes on after any stop."""

    def __init__(
        self,
        folder: Path,
        rows: list[Row],
        servers: Iterable[VllmServer],
        *,
        stall_s: float = 120,
        canary: object = True,
        hedge: bool = True,
    ) -> None:
        self.rows = rows
        self.input = write_rows(folder / "in.jsonl", rows)
        self.output = folder / "out.jsonl"
        self.errors = folder / "out.errors.jsonl"
        self.log = folder / "run.log"
        self._state = folder / "out.jsonl.state"
        self._config = folder / "config.yaml"
        self._config.write_text(
            _CONFIG % (stall_s, json.dumps(canary, ensure_ascii=False), json.dumps(hedge))
        )
        self._servers = tuple(servers)
        self._metrics_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: Samples | None = None

    def start(self) -> None:
        arguments = [
            *("run", self.input, "-o", self.output, "--config", self._config, "--keep-state"),
            *("--metrics-port", str(self._metrics_port), "--log-format", "json"),
            *(argument for server in self._servers for argument in ("--server", server.url)),
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dispatcher", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """Kill -9, if it is running. May be called again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def terminate(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def ended(self, within_s: float) -> int:
        """Wait for the end, and return the exit status."""
        assert self._process is not None
        try:
            status = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within_s:g} s:\n{self.tail()}") from None
        self._process = None
        return status

    def tail(self) -> str:
        """The end of its log, for a failed assertion."""
        return self.log.read_text()[-4000:]

    # What it shows while it runs

    def metrics(self) -> Samples:
        """Its metrics now, or as last seen: a run may end between two looks. None before the first."""
        try:
            self._seen = scrape(f"http://127.0.0.1:{self._metrics_port}")
        except httpx2.TransportError:
            running = self._process is not None and self._process.poll() is None
            assert running or self._seen is not None, f"ended early:\n{self.tail()}"
        return self._seen or Samples("")

    def total(self, name: str, server: VllmServer | None = None, **labels: str) -> float:
        of_server = {} if server is None else {"server": server.url}
        return self.metrics().total(f"dispatcher_{name}", **of_server, **labels)

    def until(self, name: str, at_least: float, within_s: float, **where: object) -> float:
        """Wait until a series stands at this value, and return how long it took."""
        what = f"{name} {where} at {at_least:g}"
        return until(lambda: self.total(name, **where) >= at_least, within_s, what)

    def until_state(self, server: VllmServer, state: str, within_s: float) -> float:
        return self.until("server_state", 1, within_s, server=server, state=state)

    # What it leaves behind

    def recorded(self) -> dict[str, bool]:
        """The rows with a whole record in the journals, and whether each is a success."""
        journals = (self._state / "journal").glob("**/*.journal")
        return {
            name: mark == b"ok"
            for journal in journals
            for line in journal.read_bytes().split(b"\n")
            for name, mark in _record(line)
        }

    def answers(self) -> dict[str, dict[str, object]]:
        return _by_name(self.output)

    def failures(self) -> dict[str, dict[str, object]]:
        return _by_name(self.errors) if self.errors.exists() else {}

    def verify(self) -> None:
        """Run `dispatcher verify`; fails the test where it does."""
        files = [self.input, self.output, *([self.errors] if self.errors.exists() else [])]
        done = subprocess.run(
            [sys.executable, "-m", "dispatcher", "verify", *files],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def _record(line: bytes) -> Iterable[tuple[str, bytes]]:
    checksum, _, content = line.partition(b"\t")
    if checksum == b"%08x" % zlib.crc32(content):
        _, mark, _, _, outcome = content.split(b"\t", 4)
        if mark != b"death":  # what is held against a row is no outcome of it
            yield json.loads(outcome)["custom_id"], mark


def _by_name(path: Path) -> dict[str, dict[str, object]]:
    outcomes = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    return {outcome["custom_id"]: outcome for outcome in outcomes}

"""Real vLLM servers for tests: started, broken and stopped by their process ids."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from real_rows import EMBEDDER, MODEL

READY_S_MAX = 400.0
"""A server alone is ready in 30 to 60 s; four at once, on two busy cores, have taken 200 s."""
STOP_S_MAX = 15.0
CONTEXT_TOKENS = 1024
COMPLETE = ("stop", "length")
"""The reasons for which a request finishes with an answer; a client that is gone makes it `abort`."""


def until(condition: Callable[[], object], within_s: float, what: str) -> float:
    """Wait for a condition, asking ten times a second. Returns how long it took, or fails the test."""
    began = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began
        assert waited_s < within_s, f"not within {within_s:g} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - began


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Samples:
    """One reading of a Prometheus page."""

    def __init__(self, page: str) -> None:
        families = text_string_to_metric_families(page)
        self._samples = [sample for family in families for sample in family.samples]

    def total(self, name: str, **labels: str) -> float:
        """The sum of the series with these labels; 0 where there is none."""
        return sum(
            sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def labels(self) -> dict[str, set[str]]:
        """The labels of each series by its name."""
        found: dict[str, set[str]] = {}
        for sample in self._samples:
            found.setdefault(sample.name, set()).update(sample.labels)
        return found


def scrape(url: str) -> Samples:
    return Samples(httpx2.get(f"{url}/metrics", trust_env=False, timeout=10.0).raise_for_status().text)


def installation() -> Path:
    """Where vLLM's CPU build and the two tiny models are. Skips, or fails where services are required."""
    folder = Path(os.environ.get("VLLM_CPU_DIR", "~/.cache/vllm-cpu")).expanduser()
    if not (folder / "ready").exists():
        reason = f"no vLLM CPU build in {folder} (VLLM_CPU_DIR)"
        (pytest.fail if os.environ.get("DISPATCHER_REQUIRE_SERVICES") == "1" else pytest.skip)(reason)
    return folder


class VllmServer:
    """One `vllm serve` on a port of its own, the same through all its lives."""

    def __init__(
        self, folder: Path, logs: Path, *, model: str, names: Iterable[str], flags: Iterable[str] = ()
    ) -> None:
        self.names = tuple(names)
        self.root = folder / model
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = logs / f"vllm-{self.port}.log"
        self._command = folder / "venv" / "bin" / "vllm"
        self._flags = tuple(flags)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a process, as the leader of a group: its engine must not outlive the tests."""
        arguments = [
            *(self._command, "serve", self.root, "--served-model-name", *self.names),
            *("--host", "127.0.0.1", "--port", str(self.port), "--max-model-len", str(CONTEXT_TOKENS)),
            *("--dtype", "float32", "--enforce-eager", "--max-num-seqs", "32"),
            *("--enable-server-load-tracking", *self._flags),
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                arguments, env=_environment(), stdout=log, stderr=log, start_new_session=True
            )

    def wait_until_ready(self) -> None:
        until(self._answers, READY_S_MAX, f"{self.names} ready, see {self.log}")

    def stop(self) -> None:
        """End it in order, and whatever is left of its group by force. May be called again."""
        if (process := self._process) is None:
            return
        self._process = None
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S_MAX)
        finally:
            _kill_group(process.pid)

    def terminate(self) -> None:
        """SIGTERM, as an operator or a batch system sends it."""
        self._alive().send_signal(signal.SIGTERM)

    def kill_engine(self) -> None:
        os.kill(self.engine(), signal.SIGKILL)

    def freeze_engine(self) -> None:
        """Let the engine stand still: the HTTP side goes on, and `/health` with it."""
        os.kill(self.engine(), signal.SIGSTOP)

    def thaw_engine(self) -> None:
        os.kill(self.engine(), signal.SIGCONT)

    def engine(self) -> int:
        """The process id of the child that owns the model."""
        parent = self._alive().pid
        for entry in Path("/proc").glob(f"{parent}/task/*/children"):
            for child in entry.read_text().split():
                if Path(f"/proc/{child}/comm").read_text().startswith("VLLM::EngineCor"):
                    return int(child)
        raise AssertionError(f"{self.names} has no engine process")

    def finished(self) -> int:
        """The requests that its engine has answered completely in this life."""
        page = scrape(self.url)
        return int(
            sum(page.total("vllm:request_success_total", finished_reason=reason) for reason in COMPLETE)
        )

    def idle(self) -> bool:
        page = scrape(self.url)
        return page.total("vllm:num_requests_running") + page.total("vllm:num_requests_waiting") == 0

    def posts(self) -> list[str]:
        """The posted requests in its access log: path and status, `/v1/completions HTTP/1.1" 500`."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line.partition('"POST ')[2] for line in lines if '"POST ' in line]

    def _alive(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, f"{self.names} was not started"
        return self._process

    def _answers(self) -> bool:
        status = self._alive().poll()
        assert status is None, f"{self.names} ended with {status}: {self.log.read_text()[-2000:]}"
        try:
            return httpx2.get(f"{self.url}/health", trust_env=False, timeout=5.0).is_success
        except httpx2.HTTPError:
            return False


LATE = "tiny-late"
"""The first server's second name: its rows hold a job open until just that server is there."""


class Fleet:
    """Two servers of one model, one of an embedding model, and one whose engine dies at its first request."""

    def __init__(self, logs: Path) -> None:
        folder = installation()
        self.first = VllmServer(folder, logs, model="tiny", names=(MODEL, LATE))
        self.second = VllmServer(folder, logs, model="tiny", names=(MODEL,))
        self.embedder = VllmServer(
            folder, logs, model="tiny", names=(EMBEDDER,), flags=("--runner", "pooling")
        )
        self.crashing = VllmServer(folder, logs, model="tiny-crash", names=(MODEL,))
        self.all = (self.first, self.second, self.embedder, self.crashing)
        self.working = self.all[:3]

    def finished(self) -> int:
        """Requests that the engines have answered completely, once none is at work any more.

        Asked twice: what a server has taken in a moment ago is not at its engine yet.
        """
        for pause_s in (0.5, 0):
            for server in self.working:
                until(server.idle, 30, f"{server.names} idle")
            time.sleep(pause_s)
        return sum(server.finished() for server in self.working)


def _environment() -> dict[str, str]:
    """One thread and 1 GiB of cache for each server, and nothing that goes out to the network."""
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    return {**os.environ, **settings}


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return

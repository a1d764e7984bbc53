"""What a live endpoint costs a request, against instant servers: `python tests/benchmarks/live.py`.

Calls a server directly, then the same servers through `dispatcher serve`, through the least that an aiohttp
service can do (`forwarder.py`), and through vllm-router where that is installed: first as fast as it goes,
then at a steady rate, and all of it again and again. What stands between has the first core to itself; the
client, one process, and the servers, another one with four ports, share the last. Prints a table. Exits with
1 where a limit that was asked for is missed.

A virtual machine's host may slow all of it down for a moment, many times over: `witness.py` notes when. The
figures of the steady rate are told with and without the requests that met such times; the limits are for the
latter.
"""

import argparse
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles

from children import pin
from instant_servers import MODEL, instant_servers, nginx_path
from live_load import WARM_UP

SERVERS = 4
CONCURRENCY = 64
READY_S_MAX = 30.0
RAMP_S = 6.0
"""An admitted server's limit doubles each second, from 8 on."""
SATURATED_PER_S_MIN = 1500.0
STEADY_PER_S = 300.0
ADDED_P50_MS_MAX = 3.0
ADDED_P99_MS_MAX = 10.0
RECOVERY_S = 0.05
"""After a slow time: what has piled up is worked off."""
EVEN_SHARE_MIN = 0.5
"""Of the requests: a machine that is slow for longer tells nothing."""


@dataclass(frozen=True, slots=True)
class Run:
    """One load on one contender."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float | None
    """Processor time of what stands between, for each request; None for nothing."""
    times: Sequence[tuple[float, float]] = field(repr=False)
    """When each request's time began, and how long it took, in seconds."""

    @property
    def core(self) -> float | None:
        """The share of its core that it used: where it is far from 1, something else was the bottleneck."""
        return None if self.cpu_us is None else self.requests_per_s * self.cpu_us / 1e6


def main() -> None:
    """Measure, print, and tell by the exit status whether the limits are kept."""
    options = _options()
    if nginx_path() is None:
        sys.stdout.write("skipped: nginx is not installed (apt-get install nginx-light)\n")
        raise SystemExit(1 if os.environ.get("DISPATCHER_REQUIRE_SERVICES") else 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # and leave no server behind
    cores = sorted(os.sched_getaffinity(0))
    with (
        tempfile.TemporaryDirectory(prefix="dispatcher-live-") as name,
        instant_servers(Path(name), SERVERS, cores[-1]) as urls,
        _witness(cores[-1]) as slow,
    ):
        runs = _compare(Path(name), urls, cores, options)
    runs["even"] = {name: [_even(run, slow) for run in taken] for name, taken in runs["steady"].items()}
    sys.stdout.write("\n".join(_table(runs)) + "\n")
    misses = _misses(runs) if options.check else []
    sys.stderr.write("".join(f"missed: {miss}\n" for miss in misses))
    raise SystemExit(1 if misses else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5_000, help="as fast as it goes; default: 5,000")
    parser.add_argument("--seconds", type=float, default=5, help="at the steady rate; default: 5")
    parser.add_argument("--repeat", type=int, default=12, help="default: 12")
    parser.add_argument("--router", default="vllm-router", help="its command; left out where it is not found")
    parser.add_argument("--check", action="store_true", help="fail where issue 4's limits are missed")
    return parser.parse_args()


Runs = dict[str, dict[str, list[Run]]]


def _compare(folder: Path, urls: Sequence[str], cores: Sequence[int], options: argparse.Namespace) -> Runs:
    """Each in turn, again and again: what else the machine does meets all."""
    loads = {
        "saturated": ["--requests", str(options.requests), "--concurrency", str(CONCURRENCY)],
        "steady": ["--requests", str(int(options.seconds * STEADY_PER_S)), "--rate", str(STEADY_PER_S)],
    }
    runs: Runs = {name: {} for name in loads}
    with (
        _dispatcher(folder, urls, cores[0]) as own,
        _forwarder(folder, urls, cores[0]) as least,
        _router(options.router, urls, cores[0]) as router,
    ):
        contenders = {"direct": (urls[0], None), "dispatcher": own, "forwarder": least, "vllm-router": router}
        time.sleep(RAMP_S)
        for _ in range(options.repeat):
            for load, arguments in loads.items():
                for name, contender in contenders.items():
                    if contender is not None:
                        url, process = contender
                        taken = _load(url, process, arguments, cores[-1])
                        runs[load].setdefault(name, []).append(taken)
    return runs


def _load(url: str, process: int | None, arguments: Sequence[str], core: int) -> Run:
    before = _cpu_s(process)
    script = Path(__file__).with_name("live_load.py")
    done = subprocess.run(
        [sys.executable, script, url, *arguments],
        check=True,
        capture_output=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    figures = json.loads(done.stdout)
    requests = int(arguments[1]) + WARM_UP
    cpu_us = None if process is None else (_cpu_s(process) - before) / requests * 1e6
    times = [(began, took) for began, took in figures["times"]]
    return Run(figures["requests_per_s"], *_quantiles(times), cpu_us, times)


def _quantiles(times: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The 50th and the 99th of a hundred, in milliseconds."""
    cuts = quantiles((took for _, took in times), n=100)
    return cuts[49] * 1e3, cuts[98] * 1e3


SlowTimes = list[tuple[float, float]]


@contextmanager
def _witness(core: int) -> Iterator[SlowTimes]:
    """When the machine was slow; filled at the end."""
    slow: SlowTimes = []
    command = [sys.executable, str(Path(__file__).with_name("witness.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=lambda: pin(core)) as watching:  # noqa: PLW1509
        try:
            yield slow
        finally:
            watching.terminate()
            said, _ = watching.communicate(timeout=READY_S_MAX)
    slow += [(began, ended) for began, ended in json.loads(said)["slow"]]


def _even(run: Run, slow: SlowTimes) -> Run:
    """The same without the requests that were open in a slow time, or soon after one."""
    times = [
        (began, took)
        for began, took in run.times
        if not any(began < ended + RECOVERY_S and since < began + took for since, ended in slow)
    ]
    if len(times) < EVEN_SHARE_MIN * len(run.times):
        return replace(run, p50_ms=math.nan, p99_ms=math.nan, times=times)
    p50_ms, p99_ms = _quantiles(times)
    return replace(run, p50_ms=p50_ms, p99_ms=p99_ms, times=times)


def _cpu_s(process: int | None) -> float:
    if process is None:
        return 0.0
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime, proc(5)


# The contenders


@contextmanager
def _dispatcher(folder: Path, urls: Sequence[str], core: int) -> Iterator[tuple[str, int]]:
    port = _free_port()
    servers = [argument for url in urls for argument in ("--server", url)]
    env = {"DISPATCHER_API__PORT": str(port), "DISPATCHER_STORAGE__URL": str(folder / "storage")}
    command = [sys.executable, "-m", "dispatcher", "serve", *servers]
    with _running(command, env, port, core, folder / "dispatcher.log") as started:
        yield started


@contextmanager
def _forwarder(folder: Path, urls: Sequence[str], core: int) -> Iterator[tuple[str, int]]:
    port = _free_port()
    command = [sys.executable, str(Path(__file__).with_name("forwarder.py")), str(port), *urls]
    with _running(command, {}, port, core, folder / "forwarder.log") as started:
        yield started


@contextmanager
def _router(name: str, urls: Sequence[str], core: int) -> Iterator[tuple[str, int] | None]:
    command = shutil.which(name)
    if command is None:
        sys.stderr.write(f"{name} is not installed: left out\n")
        yield None
        return
    port, metrics = _free_port(), _free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    arguments = [command, *options, "--policy", "power_of_two", "--worker-urls", *urls]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "router.log"
        with _running(arguments, {}, port, core, log) as started:
            yield started


@contextmanager
def _running(
    command: Sequence[str], env: dict[str, str], port: int, core: int, log: Path
) -> Iterator[tuple[str, int]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | env,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),  # noqa: PLW1509  # no threads are here
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url, process, log)
            yield url, process.pid
        finally:
            process.terminate()
            process.wait(READY_S_MAX)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until a request is answered: that takes a server which has been found to be well."""
    body = json.dumps({"model": MODEL, "messages": []}).encode()
    headers = {"Content-Type": "application/json"}
    asking = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)  # noqa: S310  # ours, http
    until = time.monotonic() + READY_S_MAX
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(asking, timeout=2).close()  # noqa: S310  # as above
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"{url} answers nothing:\n{log.read_text(errors='replace')[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# What is told


def _table(runs: Runs) -> list[str]:
    columns = ("requests/s", "p50 ms", "p99 ms", "CPU us", "of a core")
    lines = [f"{'':24}" + "".join(f"{name:>12}" for name in columns)]
    for load, contenders in runs.items():
        lines += [f"{f'{load}: {name}':24}" + _cells(taken) for name, taken in contenders.items()]
    for load in ("steady", "even"):
        for name in runs[load]:
            if name != "direct":
                p50, p99 = (_added(runs[load], name, quantile) for quantile in ("p50_ms", "p99_ms"))
                lines.append(f"{load}: {name} adds {p50:.2f} ms at p50, {p99:.2f} ms at p99")
    rounds = f"medians of {len(runs['steady']['direct'])} rounds; steady: {STEADY_PER_S:g} requests/s"
    return [*lines, f"{rounds}; even: the {_share(runs):.0%} of them outside of the machine's slow times"]


def _share(runs: Runs) -> float:
    """Of the steady requests that are left in the even times."""
    asked, left = (
        sum(len(run.times) for taken in runs[load].values() for run in taken) for load in ("steady", "even")
    )
    return left / asked


def _cells(taken: Sequence[Run]) -> str:
    rate, p50, p99 = (_median(taken, name) for name in ("requests_per_s", "p50_ms", "p99_ms"))
    cells = f"{rate:>12,.0f}{p50:>12.2f}{p99:>12.2f}"
    if taken[0].cpu_us is None:
        return cells
    return cells + f"{_median(taken, 'cpu_us'):>12,.0f}{_median(taken, 'core'):>12.2f}"


def _median(taken: Sequence[Run], name: str) -> float:
    return _middle([float(getattr(run, name)) for run in taken])


def _middle(figures: Sequence[float]) -> float:
    """The median of those that are known; not a number where none is."""
    known = [figure for figure in figures if not math.isnan(figure)]
    return median(known) if known else math.nan


def _added(steady: dict[str, list[Run]], name: str, quantile: str) -> float:
    """What it adds to a quantile, round by round: what else the machine did in a round met both."""
    pairs = zip(steady["direct"], steady[name], strict=True)
    return _middle([getattr(through, quantile) - getattr(direct, quantile) for direct, through in pairs])


def _misses(runs: Runs) -> list[str]:
    rate = _median(runs["saturated"]["dispatcher"], "requests_per_s")
    misses = [] if rate >= SATURATED_PER_S_MIN else [f"{rate:.0f} requests/s, not {SATURATED_PER_S_MIN:g}"]
    for quantile, most in (("p50_ms", ADDED_P50_MS_MAX), ("p99_ms", ADDED_P99_MS_MAX)):
        added = _added(runs["even"], "dispatcher", quantile)
        if not added < most:  # nor is it known where it is not a number
            misses.append(f"{added:.1f} ms added to {quantile}, not under {most:g}")
    return misses


if __name__ == "__main__":
    main()

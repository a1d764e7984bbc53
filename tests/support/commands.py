"""The command `dispatcher` as tests use it: started, watched, killed, and always bounded in time."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

WAIT_S_MAX = 30.0


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def events(self):
        """The log, where it is JSON: every line must be."""
        return [json.loads(line) for line in self.err.splitlines()]

    def named(self, event):
        """The log's entries of one name."""
        return [entry for entry in self.events if entry["event"] == event]


class Command:
    """One run of the command."""

    def __init__(self, pid, ended, out, err):
        self.pid = pid
        self._ended = ended
        self._out, self._err = out, err

    @property
    def out(self):
        """What it has printed so far."""
        return self._out.read_text()

    @property
    def err(self):
        """What it has said so far."""
        return self._err.read_text()

    @property
    def running(self):
        return not self._ended.done()

    def send(self, number):
        os.kill(self.pid, number)

    async def wait(self, timeout_s=WAIT_S_MAX):
        async with asyncio.timeout(timeout_s):
            status = await asyncio.shield(self._ended)
        return Done(status, self._out.read_text(), self.err)

    async def kill(self):
        """Kill -9, and wait for the end of it."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                self.send(signal.SIGKILL)
        await asyncio.wait([self._ended], timeout=WAIT_S_MAX)


class Commands:
    """Starts commands in a directory; whatever still runs when the context ends is killed.

    `zygote` is the socket of a `zygote.py`; None starts an interpreter for each command. `env` is for all.
    """

    def __init__(self, directory, zygote=None, env=None):
        self._directory = directory
        self._env = {**_environment(), **(env or {})}
        self._zygote = zygote
        self._started = []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for command in self._started:
            await command.kill()

    async def start(self, *argv, env=None, stdin=None):
        """Start `dispatcher ARGV`. `stdin` is a file; none is /dev/null."""
        logs = self._directory / f"command-{len(self._started)}"
        order = {
            "argv": [str(argument) for argument in argv],
            "env": {**self._env, **(env or {})},
            "cwd": str(self._directory),
            "stdin": str(stdin or os.devnull),
            "stdout": f"{logs}.out",
            "stderr": f"{logs}.err",
        }
        _touch(order["stdout"], order["stderr"])
        pid, ended = await (_fork(self._zygote, order) if self._zygote else _spawn(order))
        command = Command(pid, ended, Path(order["stdout"]), Path(order["stderr"]))
        self._started.append(command)
        return command

    async def run(self, *argv, timeout_s=WAIT_S_MAX, **options):
        """Start `dispatcher ARGV` and wait for its end."""
        return await (await self.start(*argv, **options)).wait(timeout_s)


@contextlib.contextmanager
def open_zygote(directory):
    """A zygote, for as long as the context is open: gives its socket."""
    path = directory / "zygote"
    process = subprocess.Popen([sys.executable, Path(__file__).with_name("zygote.py"), path], stdin=-1)
    try:
        for _ in range(3000):
            if path.exists() or process.poll() is not None:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        assert process.poll() is None, "the zygote did not start"
        yield path
    finally:
        process.stdin.close()
        process.wait(10)


async def until(condition, timeout_s=WAIT_S_MAX):
    """Wait until the condition holds; what it gave is returned. Fails after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not (found := condition()):  # noqa: ASYNC110  # what is waited for is in another process
            await asyncio.sleep(0.01)
        return found


def _touch(*names):
    for name in names:
        Path(name).touch()


def _environment():
    """Ours, without settings of the dispatcher and without proxies."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("DISPATCHER_") and not name.lower().endswith("_proxy")
    }


async def _fork(zygote, order):
    reader, writer = await asyncio.open_unix_connection(zygote)
    writer.write(json.dumps(order).encode() + b"\n")
    pid = int(await reader.readline())

    async def ended():
        try:
            return int(await reader.readline())
        finally:
            writer.close()

    return pid, asyncio.create_task(ended())


async def _spawn(order):
    with contextlib.ExitStack() as stack:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "dispatcher",
            *order["argv"],
            **_streams(order, stack),
            env=order["env"],
            cwd=order["cwd"],
        )
    return process.pid, asyncio.create_task(process.wait())


def _streams(order, stack):
    modes = {"stdin": "rb", "stdout": "wb", "stderr": "wb"}
    return {name: stack.enter_context(Path(order[name]).open(mode)) for name, mode in modes.items()}

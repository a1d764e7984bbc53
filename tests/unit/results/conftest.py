"""What the tests of recording share: small jobs, a clock that only sleeping moves, and a disk that fails."""

import asyncio
import os
import subprocess
from collections import defaultdict, deque
from pathlib import Path

import pytest

from dispatcher.model import (
    ErrorCode,
    Job,
    JobId,
    Lease,
    Outcome,
    Provenance,
    Request,
    ServerId,
    Shard,
    Tokens,
)
from dispatcher.results.disk import LocalDisk


class Samples:
    """Builders of records with everything filled in."""

    job = Job(JobId("batch_7"))

    def shard(self, number=0, count=4, rejected=()):
        return Shard(number, number * count, count, 0, 0, rejected)

    def lease(self, number=0, count=4, job=None, rejected=()):
        return Lease(job or self.job, self.shard(number, count, rejected), epoch=1)

    def requests(self, lease):
        shard = lease.shard
        indexes = range(shard.first_index, shard.first_index + shard.count)
        return [
            Request(index, f"row-{index}", "/v1/completions", None, b"{}")
            for index in indexes
            if index not in shard.rejected
        ]

    def success(self, index, body=b'{"choices":[]}'):
        provenance = Provenance(ServerId("http://gpu1:8000"), "llama", "0.32.0", 1, 0.5)
        return Outcome(
            index, f"row-{index}", None, "", 200, f"r-{index}", body, Tokens(10, index), provenance
        )

    def failure(self, index, code=ErrorCode.TIMEOUT):
        return Outcome(index, f"row-{index}", code, "no answer in 10 s")


class SteppingClock:
    """Time that passes only while somebody sleeps, and not while it is held."""

    def __init__(self):
        self.time = 0.0
        self._passing = asyncio.Event()
        self._passing.set()

    def hold(self):
        self._passing.clear()

    def release(self):
        self._passing.set()

    def now(self):
        return self.time

    def wall(self):
        return self.time

    async def sleep(self, seconds):
        await self._passing.wait()
        self.time += seconds
        await asyncio.sleep(0)


class ScriptedDisk(LocalDisk):
    """This machine's disk, but it fails when told to, and forgets at a power cut what was not synced."""

    def __init__(self, clock):
        self._clock = clock
        self._faults = defaultdict(deque)
        self._paths = {}
        self._synced = {}
        self._named = set()
        self.sync_takes_s = 0.0
        self.open_most = 0
        self.calls = []

    def fail(self, operation, code, *, times=1, written=0, name=""):
        """Let the next `times` such calls, on files with this name, fail; an append after `written` bytes."""
        self._faults[operation].extend([(code, written, name)] * times)

    @property
    def faults_left(self):
        return sum(map(len, self._faults.values()))

    def relent(self):
        self._faults.clear()

    def times_of(self, operation):
        return [time for name, time in self.calls if name == operation]

    def open(self, path):
        self._meet("open", path)
        descriptor = super().open(path)
        self._paths[descriptor] = path
        self.open_most = max(self.open_most, len(self._paths))
        return descriptor

    def append(self, descriptor, data):
        try:
            self._meet("append", self._paths[descriptor])
        except OSError as exc:
            super().append(descriptor, data[: exc.written])
            raise
        super().append(descriptor, data)

    def sync(self, descriptor):
        path = self._paths[descriptor]
        try:
            self._meet("sync", path)
        except OSError:
            self._lose_pages(path)
            raise
        super().sync(descriptor)
        self._clock.time += self.sync_takes_s
        self._synced[path] = path.read_bytes()

    def sync_folder(self, folder):
        self._meet("sync_folder", folder)
        super().sync_folder(folder)
        self._named.add(folder)

    def truncate(self, descriptor, length):
        self._meet("truncate", self._paths[descriptor])
        super().truncate(descriptor, length)

    def close(self, descriptor):
        del self._paths[descriptor]
        super().close(descriptor)

    def power_cut(self):
        """What the disk holds when power is back."""
        return {path: data for path, data in self._synced.items() if path.parent in self._named}

    def _lose_pages(self, path):
        """What a failed sync may do: the pages are gone, and the next sync says that all is well."""
        kept = self._synced.get(path, b"")
        path.write_bytes(kept + bytes(path.stat().st_size - len(kept)))

    def _meet(self, operation, path):
        self.calls.append((operation, self._clock.now()))
        faults = self._faults[operation]
        if faults and path.name.startswith(faults[0][2]):
            code, written, _ = faults.popleft()
            error = OSError(code, os.strerror(code))
            error.written = written
            raise error


async def eventually(condition):
    """Wait, for a second at most, until the condition holds."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.001)
    pytest.fail("it never came about")


@pytest.fixture
def samples():
    return Samples()


@pytest.fixture
def clock():
    return SteppingClock()


@pytest.fixture
def disk(clock):
    return ScriptedDisk(clock)


@pytest.fixture(name="eventually")
def eventually_fixture():
    return eventually


@pytest.fixture
def lines_of():
    """The lines of a file, or none where it does not exist."""

    def read(path: Path):
        return path.read_bytes().splitlines() if path.exists() else []

    return read


@pytest.fixture
def tiny_filesystem(tmp_path):
    """A real file system of 64 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0
    if not mounted:
        pytest.skip("mounting a tmpfs needs root, and a kernel that lets it")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)

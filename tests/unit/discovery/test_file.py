"""The file of servers: what it says, and what is kept while it says nothing sensible."""

import itertools
import os
from contextlib import suppress

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from dispatcher.discovery.file import ServersFile
from dispatcher.errors import ConfigError


class ScriptEndedError(Exception):
    """The watch has slept once more than the script has steps."""


class ScriptedClock:
    """Runs one step of a script at each sleep: what the world does meanwhile."""

    def __init__(self, *steps):
        self._steps = list(steps)
        self.slept_s = 0.0

    async def sleep(self, seconds):
        self.slept_s += seconds
        if not self._steps:
            raise ScriptEndedError
        self._steps.pop(0)()


class World:
    """A file that others write to: each writing has a time of its own."""

    def __init__(self, path):
        self.path = path
        self._times = itertools.count(1_000_000_000)

    def write(self, text, path=None):
        path = path or self.path
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        os.utime(path, (time := next(self._times), time))

    def writes(self, text):
        return lambda: self.write(text)


def rests():
    """Nothing happens."""


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "servers.txt")


async def watched(file, *steps):
    """The lists yielded while the script ran, as ids, and the logged events."""
    seen = []
    clock = ScriptedClock(*steps)
    with capture_logs() as logs:
        await collect(file.watch(clock, interval_s=5.0), seen)
    assert clock.slept_s == 5.0 * (len(steps) + 1)
    return seen, [entry["event"] for entry in logs]


async def collect(lists, seen):
    with suppress(ScriptEndedError):
        async for servers in lists:
            seen.append(ids(servers))


def ids(servers):
    return [server.id for server in servers]


def faults_of(path):
    with pytest.raises(ConfigError) as caught:
        ServersFile(path).read()
    return {fault.where: fault.message for fault in caught.value.faults}


def test_lines_hold_servers_ranges_and_comments(world):
    world.write("\ufeff# the fleet\n\ngpu[01-02]:8000\r\n  http://h/prefix/v1   # router\n#gpu9:1\nlast:1")
    assert ids(ServersFile(world.path).read()) == [
        "http://gpu01:8000",
        "http://gpu02:8000",
        "http://h/prefix",
        "http://last:1",
    ]


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_a_yaml_list_holds_entries_with_settings(tmp_path, suffix):
    path = tmp_path / f"servers{suffix}"
    path.write_text("- gpu1:8000\n- {url: 'http://gpu[2-3]', limit: 4, api_key: 0123}\n")
    servers = ServersFile(path, SecretStr("default")).read()
    assert [(server.id, server.limit, server.api_key) for server in servers] == [
        ("http://gpu1:8000", None, "default"),
        ("http://gpu2", 4, "0123"),
        ("http://gpu3", 4, "0123"),
    ]


def test_every_faulty_line_is_named_by_its_number(world):
    world.write("# c\nftp://x\nhttp://ok\nhttp://user:hunter2@h\n\nnowhere\n")
    assert faults_of(world.path) == {
        f"{world.path}:2": "url must be http or https",
        f"{world.path}:4": "url must not hold a user or password: set api_key or headers instead",
        f"{world.path}:6": "url needs a port or a scheme: gpu1:8000, or http://gpu1",
    }


def test_a_line_that_contradicts_an_earlier_one_is_named_by_its_number(tmp_path):
    path = tmp_path / "servers.yaml"
    path.write_text("- http://gpu[1-2]\n- http://gpu3\n- {url: http://gpu2, limit: 4}\n")
    assert faults_of(path) == {f"{path}:3": "lists http://gpu2 again with other settings"}


def test_every_faulty_entry_of_a_yaml_list_is_named_by_its_line(tmp_path):
    path = tmp_path / "servers.yaml"
    path.write_text("- http://a\n- {url: 'http://b',\n   limit: 0}\n- {limt: 4}\n- [hunter2]\n")
    with pytest.raises(ConfigError) as caught:
        ServersFile(path).read()
    assert [str(fault) for fault in caught.value.faults] == [
        f"{path}:3: limit must be greater than or equal to 1, got 0",
        f"{path}:4: url is missing",
        f"{path}:4: limt is not a setting; did you mean limit?",
        f"{path}:5: must be a mapping",
    ]


@pytest.mark.parametrize("text", ["a: 1", "text", "- [", "- a: 1\n  a: 2"])
def test_a_yaml_file_that_is_no_list_is_a_fault(tmp_path, text):
    path = tmp_path / "servers.yaml"
    path.write_text(text)
    assert all(where.startswith(str(path)) for where in faults_of(path))


def test_at_the_start_a_missing_file_is_a_fault_and_an_empty_one_an_empty_list(world):
    assert faults_of(world.path) == {str(world.path): "cannot be read: No such file or directory"}
    world.write("# none yet\n")
    assert ServersFile(world.path).read() == []


async def test_a_change_is_yielded_once_it_has_stood_for_one_interval(world):
    world.write("a:1")
    file = ServersFile(world.path)
    file.read()
    seen, events = await watched(file, rests, world.writes("a:1\nb:1"), rests, rests, rests)
    assert seen == [["http://a:1", "http://b:1"]]
    assert events == ["servers_file_changed"]


async def test_a_file_still_being_written_is_not_taken_for_a_list(world):
    world.write("a:1")
    file = ServersFile(world.path)
    file.read()
    parts = [
        world.writes("a:1\nb:80"),
        world.writes("a:1\nb:8000\nc:80"),
        world.writes("a:1\nb:8000\nc:8000\n"),
    ]
    seen, _ = await watched(file, *parts, rests, rests)
    assert seen == [["http://a:1", "http://b:8000", "http://c:8000"]]


async def test_the_first_list_is_yielded_when_nothing_was_read_before(world):
    world.write("a:1")
    assert (await watched(ServersFile(world.path), rests, rests, rests))[0] == [["http://a:1"]]


async def test_a_touched_or_reworded_file_is_no_change(world):
    world.write("a:1")
    file = ServersFile(world.path)
    file.read()
    seen, events = await watched(file, world.writes("a:1"), rests, world.writes("# x\nhttp://A:1/v1"), rests)
    assert (seen, events) == ([], [])


async def test_a_replaced_file_is_seen_though_its_size_and_time_are_the_same(world):
    world.write("a:1")
    file = ServersFile(world.path)
    file.read()

    def replace():
        other = world.path.with_suffix(".new")
        other.write_text("b:1")
        status = world.path.stat()
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        other.replace(world.path)

    assert (await watched(file, replace, rests, rests))[0] == [["http://b:1"]]


async def test_a_file_whose_time_size_and_inode_stay_is_not_read_again(world):
    world.write("a:1")
    file = ServersFile(world.path)
    file.read()

    def rewrite_unseen():
        times = (world.path.stat().st_atime_ns, world.path.stat().st_mtime_ns)
        world.path.write_text("b:1")
        os.utime(world.path, ns=times)

    assert await watched(file, rewrite_unseen, rests, rests) == ([], [])


def unreadable(world):
    world.path.unlink()
    world.path.mkdir()


BROKEN = {
    "missing": lambda world: world.path.unlink(),
    "a directory": unreadable,
    "empty": lambda world: world.write(""),
    "only comments": lambda world: world.write("# all gone\n"),
    "half a line": lambda world: world.write("a:1\nhttp://c:"),
    "one bad line": lambda world: world.write("a:1\nftp://b\n"),
    "no text": lambda world: world.write(b"\xff\xfe\x00"),
    "a conflict": lambda world: world.write("http://gpu[2-1]\n"),
}


@pytest.mark.parametrize("break_file", BROKEN.values(), ids=BROKEN)
async def test_a_broken_file_keeps_the_last_list_is_logged_once_and_heals(world, break_file):
    world.write("a:1\nb:1\n")
    file = ServersFile(world.path)
    file.read()

    def repair():
        if world.path.is_dir():
            world.path.rmdir()
        world.write("a:1\nc:1\n")

    seen, events = await watched(file, lambda: break_file(world), rests, rests, rests, repair, rests, rests)
    assert seen == [["http://a:1", "http://c:1"]]
    assert events == ["servers_file_unreadable", "servers_file_changed"]


async def test_a_file_that_goes_and_comes_back_unchanged_is_no_change(world):
    world.write("a:1")
    file = ServersFile(world.path)
    file.read()
    away = world.path.with_suffix(".away")
    steps = [lambda: world.path.rename(away), rests, lambda: away.rename(world.path), rests, rests]
    assert await watched(file, *steps) == ([], ["servers_file_unreadable"])

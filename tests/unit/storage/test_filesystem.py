import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from dispatcher.errors import StateError, StorageError
from dispatcher.storage import filesystem
from dispatcher.storage.filesystem import (
    StateLock,
    atomic_write,
    ensure_writable,
    fsync_dir,
    network_filesystem,
    replacing,
    storage_errors,
)

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw shared:2 master:1 - nfs4 server:/home rw
31 30 8:2 / /home/local rw - xfs /dev/sdb1 rw
32 22 0:41 / /mnt/with\040space rw - lustre mgs:/fs rw
33 22 0:42 / /mnt/cloud rw - fuse.gcsfuse bucket rw
34 22 0:43 / /mnt/archive rw - fuse.squashfuse image rw
35 22 0:44 / /twice rw - nfs server:/a rw
36 22 0:45 / /twice rw - tmpfs tmpfs rw
37 22 0:46 / /mnt/plan9 rw - 9p host rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/state", None),
        ("/home/me/state", "nfs4"),
        ("/homes", None),
        ("/home/local/state", None),
        ("/mnt/with space/state", "lustre"),
        ("/mnt/cloud", "fuse.gcsfuse"),
        ("/mnt/archive/state", None),
        ("/twice/state", None),
        ("/mnt/plan9/state", "9p"),
    ],
)
def test_the_longest_mount_tells_the_file_system(tmp_path, path, kind):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert network_filesystem(path, mounts) == kind


def test_a_link_is_followed_to_where_it_leads(tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS + f"40 22 0:50 / {tmp_path.resolve()}/remote rw - ceph c:/ rw\n")
    (tmp_path / "link").symlink_to(tmp_path / "remote")
    assert network_filesystem(tmp_path / "link", mounts) == "ceph"


def test_without_a_list_of_mounts_nothing_is_known(tmp_path):
    assert network_filesystem(tmp_path, tmp_path / "absent") is None


def test_this_systems_own_list_can_be_read(tmp_path):
    assert network_filesystem("/proc") is None


def test_a_second_taker_is_told_who_holds_the_lock_since_when(tmp_path):
    with (
        StateLock(tmp_path, wall=lambda: 1_700_000_000.0),
        pytest.raises(StateError) as caught,
        StateLock(tmp_path),
    ):
        pass
    message = str(caught.value)
    assert f"{tmp_path} is in use by process {os.getpid()} on {os.uname().nodename}" in message
    assert "since 2023-11-14T22:13:20+00:00" in message


def test_the_lock_can_be_taken_again_when_it_was_given_back(tmp_path):
    for _ in range(2):
        with StateLock(tmp_path):
            pass


def test_a_holder_that_has_not_written_its_name_is_still_a_holder(tmp_path):
    with StateLock(tmp_path):
        (tmp_path / "lock").write_bytes(b"")
        with pytest.raises(StateError, match="in use by another process"), StateLock(tmp_path):
            pass


def test_a_killed_process_leaves_no_lock_behind(tmp_path):
    program = (
        "import sys, time, pathlib\n"
        "from dispatcher.storage.filesystem import StateLock\n"
        "with StateLock(pathlib.Path(sys.argv[1])):\n"
        "    print('locked', flush=True)\n"
        "    time.sleep(30)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"locked\n"
            with pytest.raises(StateError, match=f"process {holder.pid} "), StateLock(tmp_path):
                pass
        finally:
            holder.kill()
        holder.wait()
    with StateLock(tmp_path):
        pass


@pytest.fixture
def dead():
    """The id of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def held_by_children(directory, pid):
    """A lock that the children of this process hold: the open file that they have inherited."""
    with StateLock(directory) as lock:
        children = os.dup(lock.descriptor)
    holder = {"pid": pid, "host": socket.gethostname(), "since": 0.0}
    (directory / "lock").write_text(json.dumps(holder))
    return children


def test_the_children_of_a_dead_holder_hold_the_lock_and_are_waited_for(tmp_path, dead):
    end = threading.Timer(0.15, os.close, [held_by_children(tmp_path, dead)])
    end.start()
    began = time.monotonic()
    with StateLock(tmp_path):
        assert time.monotonic() - began > 0.1
    end.join()


def test_children_that_stay_are_not_waited_for_for_ever(tmp_path, dead, monkeypatch):
    monkeypatch.setattr(filesystem, "_ORPHANS_S_MAX", 0.05)
    children = held_by_children(tmp_path, dead)
    with pytest.raises(StateError, match=f"process {dead} .* not ended yet: try again"), StateLock(tmp_path):
        pass
    os.close(children)


def test_those_of_a_holder_that_lives_or_is_elsewhere_are_not_waited_for(tmp_path):
    children = held_by_children(tmp_path, os.getppid())
    with pytest.raises(StateError, match="in use by process"), StateLock(tmp_path):
        pass
    (tmp_path / "lock").write_text(json.dumps({"pid": 1, "host": "another", "since": 0.0}))
    with pytest.raises(StateError, match="on another since"), StateLock(tmp_path):
        pass
    os.close(children)


def test_a_lock_that_cannot_be_made_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="cannot be locked: No such file"), StateLock(tmp_path / "absent"):
        pass


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "file"
    atomic_write(path, b"old")
    atomic_write(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write_half():
        with replacing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_new_file_is_not_in_place_before_the_end(tmp_path):
    path = tmp_path / "file"
    with replacing(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "use another directory"),
        (errno.EACCES, "permissions"),
        (errno.ENOLCK, "has locks"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_storage_error_says_where_what_and_what_can_be_done(tmp_path, number, advice):
    with pytest.raises(StorageError, match=advice) as caught, storage_errors(tmp_path, "cannot be written"):
        raise OSError(number, os.strerror(number))
    assert str(caught.value).startswith(f"{tmp_path}: cannot be written: {os.strerror(number)}")
    assert isinstance(caught.value.__cause__, OSError)


def test_a_missing_directory_is_made_and_left_empty(tmp_path):
    ensure_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_what_is_no_writable_directory_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below", "/proc/none"):
        with pytest.raises(StorageError, match="cannot be written"):
            ensure_writable(type(tmp_path)(path))


def test_a_directory_that_is_not_there_cannot_be_synced(tmp_path):
    fsync_dir(tmp_path)
    with pytest.raises(StorageError, match="cannot be synced"):
        fsync_dir(tmp_path / "absent")

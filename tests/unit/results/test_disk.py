"""Whole files only: what a replacement leaves behind when it fails."""

import errno
import os

import pytest

from dispatcher.errors import StorageError
from dispatcher.results.disk import LocalDisk, make_folder, replace_file, storage_errors, write_all


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old and longer")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_crash_left_aside_is_started_afresh(tmp_path):
    (tmp_path / "a.partial").write_bytes(b"much longer than what comes")
    replace_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_failed_replacement_leaves_the_old_file_and_nothing_aside(tmp_path):
    path = tmp_path / "a"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_everything_is_written_through_short_writes(tmp_path):
    reader, writer = os.pipe()
    data = os.urandom(50_000)
    try:
        write_all(writer, data)
        assert os.read(reader, 60_000) == data
    finally:
        os.close(reader)
        os.close(writer)


def test_folders_are_made_all_the_way_and_more_than_once(tmp_path):
    for _ in range(2):
        make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_opening_makes_the_file_and_its_folders_and_appends(tmp_path):
    disk = LocalDisk()
    path = tmp_path / "a" / "b"
    for data in (b"one", b"two"):
        descriptor = disk.open(path)
        disk.append(descriptor, data)
        disk.close(descriptor)
    assert path.read_bytes() == b"onetwo"


def test_the_systems_reason_stands_in_the_message():
    message = r"^cannot write x: No space left on device; free some$"
    with pytest.raises(StorageError, match=message), storage_errors("cannot write x", "free some"):
        raise OSError(errno.ENOSPC, "No space left on device")

"""Single objects for code that blocks; a store in memory stands for the real one."""

import io

import pytest
from obstore.store import MemoryStore

from dispatcher.errors import InputError, StorageError, TakenError
from dispatcher.storage import remote as remote_module
from dispatcher.storage.remote import Remote

CONTENT = bytes(range(256)) * 8192  # 2 MiB


@pytest.fixture
def remote(monkeypatch):
    store = MemoryStore()
    monkeypatch.setattr(remote_module, "open_store", lambda *_, **__: store)
    return Remote("s3://bucket/folder/name")


def write(remote, content=CONTENT):
    with remote.writing() as file:
        file.write(content)


def test_what_is_written_is_read_here_and_there(remote):
    write(remote)
    assert remote.find().size == len(CONTENT)
    with remote.open() as file:
        assert file.read(10) == CONTENT[:10]
        file.seek(-5, io.SEEK_END)
        assert (file.read(100), file.read(1)) == (CONTENT[-5:], b"")
        assert file.seek(1_000_000) == file.tell() == 1_000_000
        assert file.read(300_000) == CONTENT[1_000_000:1_300_000]


def test_it_is_read_from_start_to_end(remote, monkeypatch):
    monkeypatch.setattr(remote_module, "READ_BYTES", 600_000)
    write(remote)
    pieces = list(remote.chunks())
    assert b"".join(pieces) == CONTENT
    assert max(map(len, pieces)) == 600_000


@pytest.mark.parametrize("error", [ValueError, FileNotFoundError, KeyboardInterrupt])
def test_an_error_while_it_is_written_leaves_what_was_there(remote, error):
    write(remote, b"before")

    def broken_off():
        with remote.writing() as file:
            file.write(CONTENT)
            raise error("mine")

    with pytest.raises(error, match="mine"):
        broken_off()
    assert b"".join(remote.chunks()) == b"before"


def test_an_object_that_is_written_anew_while_it_is_read_is_an_error(remote):
    write(remote)
    with remote.open() as file:
        file.read(1)
        write(remote, CONTENT[::-1])
        file.seek(1_900_000)
        with pytest.raises(TakenError, match="s3://bucket/folder/name"):
            file.read(1)


def test_what_is_not_there_is_an_input_error_and_removing_it_is_none(remote):
    with pytest.raises(InputError, match="there is no such object"):
        remote.find()
    write(remote)
    remote.remove()
    remote.remove()
    with pytest.raises(InputError):
        remote.open()


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "folder/name", "https://host/x/y"])
def test_what_names_no_object_is_refused(url):
    with pytest.raises(StorageError, match="give a URL like"):
        Remote(url)

"""One journal on a disk that fails in every way: the records arrive whole, in order and once."""

import errno

import pytest

from dispatcher.errors import StorageError
from dispatcher.results.journal_file import JournalFile, Note, OpenFiles

REFUSALS = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "000" / "a.journal"


@pytest.fixture
def file(path, disk):
    file = JournalFile(path, 0, disk)
    yield file
    file.close()


def test_records_are_written_in_the_order_given_and_count_when_synced(file, path):
    file.give([b"one\n", b"two\n"])
    file.give([b"three\n"])
    file.write()
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    assert (file.take_durable(), file.settled, file.owing) == (0, False, 3)
    assert file.sync()
    assert (file.take_durable(), file.settled, file.owing) == (3, True, 0)
    assert file.take_durable() == 0


def test_nothing_to_write_or_sync_touches_no_disk(file, path, disk):
    file.write()
    assert not file.sync()
    assert disk.calls == []
    assert not path.exists()


def test_a_new_journals_name_is_made_durable_too(file, path, disk):
    file.give([b"one\n"])
    file.write()
    file.sync()
    assert disk.power_cut() == {path: b"one\n"}


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("written", [0, 1, 5, 8])
def test_a_failed_write_is_cut_back_and_done_again(file, path, disk, code, written):
    file.give([b"one\n"])
    file.write()
    disk.fail("append", code, written=written)
    file.give([b"two\n", b"three\n"])
    with pytest.raises(StorageError, match=r"cannot write .*a\.journal: "):
        file.write()
    assert path.read_bytes() == b"one\n"
    assert file.unwritten
    file.give([b"four\n"])
    file.write()
    file.sync()
    assert path.read_bytes() == b"one\ntwo\nthree\nfour\n"
    assert file.take_durable() == 4


def test_what_could_not_be_cut_back_at_once_is_cut_back_before_the_next_write(file, path, disk):
    disk.fail("append", errno.EIO, written=3)
    disk.fail("truncate", errno.EIO, times=2)
    file.give([b"one\n"])
    for _ in range(2):
        with pytest.raises(StorageError):
            file.write()
        assert path.read_bytes() == b"one"
    file.write()
    assert path.read_bytes() == b"one\n"


def test_a_file_that_cannot_be_opened_keeps_its_records(file, path, disk):
    disk.fail("open", errno.EMFILE)
    file.give([b"one\n"])
    with pytest.raises(StorageError, match="Too many open files"):
        file.write()
    file.write()
    assert path.read_bytes() == b"one\n"


@pytest.mark.parametrize("code", REFUSALS)
def test_after_a_failed_sync_the_lost_records_are_written_again(file, path, disk, code):
    file.give([b"one\n"])
    file.write()
    file.sync()
    file.give([b"two\n"])
    file.write()
    disk.fail("sync", code)
    with pytest.raises(StorageError):
        file.sync()
    assert path.read_bytes() == b"one\n\0\0\0\0"  # the pages are gone, and the next sync would not say so
    assert file.take_durable() == 1
    file.give([b"three\n"])
    file.write()
    file.sync()
    assert disk.power_cut() == {path: b"one\ntwo\nthree\n"}
    assert file.take_durable() == 2


def test_a_file_whose_name_is_not_durable_counts_for_nothing(file, path, disk):
    disk.fail("sync_folder", errno.EIO)
    file.give([b"one\n"])
    file.write()
    with pytest.raises(StorageError):
        file.sync()
    assert file.take_durable() == 0
    assert disk.power_cut() == {}
    file.write()
    file.sync()
    assert disk.power_cut() == {path: b"one\n"}
    assert file.take_durable() == 1


def test_a_journal_is_carried_on_where_it_ended(path, disk):
    path.parent.mkdir()
    path.write_bytes(b"one\n")
    file = JournalFile(path, 4, disk)
    disk.fail("append", errno.ENOSPC, written=2)
    file.give([b"two\n"])
    with pytest.raises(StorageError):
        file.write()
    file.write()
    file.close()
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_closed_journal_is_opened_again_by_the_next_write(file, path):
    for record in (b"one\n", b"two\n"):
        file.give([record])
        file.write()
        file.sync()
        file.close()
    assert path.read_bytes() == b"one\ntwo\n"


def test_the_least_recently_used_file_makes_room_and_is_synced_first(tmp_path, disk):
    files = [JournalFile(tmp_path / str(number), 0, disk) for number in range(3)]
    bounded = OpenFiles(2)
    for file in (files[0], files[1], files[0], files[2]):
        file.give([b"x\n"])
        bounded.admit(file)
        file.write()
    assert disk.open_most == 2
    assert [file.take_durable() for file in files] == [0, 1, 0]
    bounded.close_all()


def test_a_file_that_cannot_be_synced_is_not_closed_to_make_room(tmp_path, disk):
    first, second = (JournalFile(tmp_path / name, 0, disk) for name in "ab")
    bounded = OpenFiles(1)
    first.give([b"x\n"])
    bounded.admit(first)
    first.write()
    disk.fail("sync", errno.EIO)
    with pytest.raises(StorageError, match=r"cannot write .*/a: "):
        bounded.admit(second)
    first.write()
    bounded.admit(second)
    assert first.take_durable() == 1
    bounded.close_all()


def test_a_note_is_made_durable_and_is_not_counted(file, path):
    file.give([b"one\n", Note(b"note\n"), b"two\n"])
    file.write()
    assert file.owing == 3
    assert file.sync()
    assert (file.take_durable(), file.settled) == (2, True)
    assert path.read_bytes() == b"one\nnote\ntwo\n"


def test_a_note_that_could_not_be_synced_is_written_again_and_not_counted(file, path, disk):
    file.give([Note(b"note\n"), b"one\n"])
    file.write()
    disk.fail("sync", errno.EIO)
    with pytest.raises(StorageError):
        file.sync()
    file.write()
    assert file.sync()
    assert file.take_durable() == 1
    assert path.read_bytes() == b"note\none\n"

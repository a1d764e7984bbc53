import pytest

from dispatcher.errors import StorageError
from dispatcher.jobs.files import Files
from dispatcher.jobs.local import LocalArchive
from dispatcher.jobs.places import Places
from dispatcher.jobs.retention import Retention
from dispatcher.queue.keeping import FilesWanted
from dispatcher.queue.sql import open_queue
from dispatcher.storage.folder import Folder


class Clock:
    time = 1000.0

    def now(self):
        return self.time

    def wall(self):
        return self.time

    async def sleep(self, seconds):
        self.time += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def files(tmp_path, clock):
    async with open_queue(tmp_path / "queue.sqlite", clock) as queue:
        places = Places(tmp_path)
        archive = LocalArchive(places, queue.keeping, Retention(clock, None, 600))
        await archive.open((), ())
        made = Files(Folder(tmp_path), queue.keeping, clock)
        made.archive = archive
        yield made


async def keep(files, content=b"x", owner="ann", expires_s=None):
    async with files.receive() as upload:
        await upload.write(content)
        return await upload.keep(owner, "in.jsonl", "batch", expires_s)


async def test_a_kept_upload_is_a_file_and_one_that_is_not_leaves_nothing(files, tmp_path):
    record = await keep(files, b"abc")
    assert (record.bytes, files.path(record).read_bytes()) == (3, b"abc")
    async with files.receive() as upload:
        await upload.write(b"abc")
    assert [path.name for path in (tmp_path / "files").iterdir()] == [record.id]


async def test_an_owner_sees_their_own_files_and_nobody_else_everybodys(files):
    record = await keep(files)
    assert await files.get(record.id, "ann") == record
    assert await files.get(record.id, None) == record
    assert await files.get(record.id, "bob") is None
    assert await files.list(FilesWanted("bob", 10)) == []
    assert await files.list(FilesWanted(None, 10)) == [record]


async def test_files_of_the_same_moment_are_paged_through_once_each(files):
    ids = sorted([(await keep(files)).id for _ in range(5)])
    for ascending in (True, False):
        seen, after = [], None
        while page := await files.list(FilesWanted("ann", 2, after=after, ascending=ascending)):
            seen += [record.id for record in page]
            after = seen[-1]
        assert seen == (ids if ascending else ids[::-1])


async def test_a_page_after_a_file_that_is_gone_is_empty(files):
    await keep(files)
    assert await files.list(FilesWanted(None, 10, after="file-gone")) == []


async def test_an_expired_file_is_not_there_and_then_its_bytes_are_not(files, clock):
    record, kept = await keep(files, expires_s=10), await keep(files)
    clock.time += 9.9
    await files.remove_expired()
    assert await files.get(record.id, "ann") == record
    clock.time += 0.2
    assert await files.get(record.id, "ann") is None
    assert await files.list(FilesWanted(None, 10)) == [kept]
    await files.remove_expired()
    assert not files.path(record).exists()
    assert files.path(kept).exists()


async def test_expired_files_take_no_room_on_a_page(files, clock):
    expiring = [await keep(files, expires_s=10) for _ in range(3)]
    kept = [await keep(files) for _ in range(3)]
    clock.time += 11
    assert len(await files.list(FilesWanted("ann", 4, ascending=True))) == len(kept)
    assert {record.id for record in await files.list(FilesWanted("ann", 4))}.isdisjoint(
        record.id for record in expiring
    )


async def test_bytes_that_cannot_be_removed_are_a_storage_error(files):
    record = await keep(files)
    files.path(record).unlink()
    files.path(record).mkdir()
    with pytest.raises(StorageError, match="cannot be removed"):
        await files.remove(record.id)


async def test_opening_removes_bytes_that_are_no_file_and_are_not_being_made(files, tmp_path):
    record = await keep(files)
    for name in ("file-stray", "file-a.upload", "file-made.partial", "file-made"):
        (tmp_path / "files" / name).write_bytes(b"x")
    await files.archive.open((), {"file-made"})
    assert {path.name for path in (tmp_path / "files").iterdir()} == {record.id, "file-made"}


async def test_a_name_that_leads_elsewhere_is_no_name(tmp_path):
    for name in ("../x", "a/b", ".", "", "a\0", "x" * 101):
        with pytest.raises(StorageError):
            Places(tmp_path).file(name)

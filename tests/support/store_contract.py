"""What every `ports.Store` must do: a test module gives the fixture `store` and takes these in by name."""

import asyncio

import pytest

from dispatcher.errors import MissingError, TakenError

PIECE = bytes(range(256)) * 4096  # 1 MiB


async def keys(store, folder):
    return sorted([stored.key async for stored in store.list(folder)])


async def received(store, key, *pieces, **options):
    async with store.receive(key, **options) as incoming:
        for piece in pieces:
            await incoming.write(piece)
        await incoming.keep()


class StoreContract:
    """`store` is an empty one."""

    @pytest.mark.parametrize("pieces", [0, 1, 20])
    async def test_a_stream_that_is_kept_is_there_as_a_whole(self, store, pieces):
        await received(store, "files/file-1", *[PIECE] * pieces)
        assert (await store.find("files/file-1")).size == pieces * len(PIECE)
        assert await store.read("files/file-1") == PIECE * pieces

    async def test_a_stream_that_is_not_kept_leaves_nothing(self, store):
        async def broken_off():
            async with store.receive("files/file-1") as incoming:
                for _ in range(20):
                    await incoming.write(PIECE)
                raise ValueError("enough")

        with pytest.raises(ValueError, match="enough"):
            await broken_off()
        async with store.receive("files/file-2") as incoming:
            await incoming.write(PIECE)
        assert await keys(store, "files") == []

    async def test_a_cancelled_stream_leaves_nothing(self, store):
        writing = asyncio.Event()

        async def endless():
            async with store.receive("files/file-1") as incoming:
                while True:
                    await incoming.write(PIECE[:100_000])
                    writing.set()

        task = asyncio.create_task(endless())
        await writing.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await keys(store, "files") == []

    async def test_two_streams_go_on_side_by_side(self, store):
        async with store.receive("files/a") as first, store.receive("files/b") as second:
            for _ in range(3):
                await first.write(b"a" * 1000)
                await second.write(b"b" * 1000)
            await second.keep()
            await first.keep()
        assert (await store.read("files/a"), await store.read("files/b")) == (b"a" * 3000, b"b" * 3000)

    async def test_a_range_is_cut_off_at_the_end(self, store):
        await store.put("files/x", b"0123456789")
        assert await store.read("files/x", 2, 3) == b"234"
        assert await store.read("files/x", 8, 5) == b"89"
        assert await store.read("files/x", 4) == b"456789"
        assert await store.read("files/x", 4, 0) == b""

    async def test_what_is_missing_has_no_size_and_cannot_be_read_but_be_removed(self, store):
        assert await store.find("files/none") is None
        with pytest.raises(MissingError, match="files/none"):
            await store.read("files/none", 0, 10)
        await store.put("files/x", b"x")
        await store.delete(["files/none", "files/x", "files/never"])
        assert await keys(store, "files") == []

    async def test_a_key_is_taken_once_and_then_replaced_only_by_whoever_knows_its_version(self, store):
        first = await store.put("journals/x", b"first")
        with pytest.raises(TakenError):
            await store.put("journals/x", b"other")
        assert (await store.find("journals/x")).version == first
        second = await store.put("journals/x", b"second", first)
        assert (await store.find("journals/x")).version == second != first
        with pytest.raises(TakenError):
            await store.put("journals/x", b"other", first)
        assert await store.read("journals/x") == b"second"
        await store.put("journals/x", b"third", second)
        assert await store.read("journals/x") == b"third"

    async def test_what_is_replaced_must_be_there(self, store):
        version = await store.put("journals/x", b"first")
        await store.delete(["journals/x"])
        with pytest.raises(TakenError):
            await store.put("journals/x", b"second", version)
        assert await keys(store, "journals") == []

    async def test_of_writers_at_once_one_wins(self, store):
        results = await asyncio.gather(
            *(store.put("journals/x", b"%d" % writer) for writer in range(5)), return_exceptions=True
        )
        (winner,) = [number for number, result in enumerate(results) if isinstance(result, str)]
        assert sum(isinstance(result, TakenError) for result in results) == 4
        assert await store.read("journals/x") == b"%d" % winner

    async def test_a_list_is_of_a_folder_with_sizes_and_times(self, store):
        for key in ("files/a", "files/b/c", "filesystem/d", "files-e"):
            await store.put(key, b"1234")
        assert await keys(store, "files") == ["files/a", "files/b/c"]
        assert await keys(store, "none") == []
        (stored,) = [stored async for stored in store.list("filesystem")]
        assert stored.size == 4
        assert 1_500_000_000 < stored.changed_at < 5_000_000_000

    async def test_a_usable_store_passes_its_check_and_keeps_nothing_of_it(self, store):
        await store.check()
        for folder in ("files", "journals"):
            assert await keys(store, folder) == []

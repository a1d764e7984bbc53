import gzip
import io

import pytest
import zstandard

from dispatcher.compression import Compression, reading, unpacked
from dispatcher.errors import InputError, StorageError

PACKERS = {
    Compression.NONE: bytes,
    Compression.GZIP: gzip.compress,
    Compression.ZSTD: zstandard.ZstdCompressor().compress,
}
CONTENT = b"".join(b"line %d\n" % number for number in range(200_000))


def unpack(packed, compression):
    return b"".join(unpacked(io.BytesIO(packed), compression, "input"))


@pytest.mark.parametrize("compression", Compression)
def test_content_comes_back(compression):
    assert unpack(PACKERS[compression](CONTENT), compression) == CONTENT
    assert unpack(b"", compression) == b""


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
def test_members_and_frames_that_follow_each_other_are_read_as_one(compression):
    pack = PACKERS[compression]
    assert unpack(pack(CONTENT) + pack(b"") + pack(b"end"), compression) == CONTENT + b"end"


def test_a_skippable_frame_is_skipped():
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"extra"
    frame = PACKERS[Compression.ZSTD](b"content")
    assert unpack(skippable + frame + skippable, Compression.ZSTD) == b"content"


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
@pytest.mark.parametrize("kept", [3, 20, 1000, -1])
def test_an_archive_that_is_cut_off_is_an_input_error(compression, kept):
    with pytest.raises(InputError, match="ends too early"):
        unpack(PACKERS[compression](CONTENT)[:kept], compression)


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
def test_an_archive_with_wrong_bytes_is_an_input_error(compression):
    packed = bytearray(PACKERS[compression](CONTENT))
    packed[len(packed) // 2] ^= 0xFF
    for damaged in (bytes(packed), b"plain text", PACKERS[compression](b"a") + b"plain text"):
        with pytest.raises(InputError, match="input: "):
            unpack(damaged, compression)


@pytest.mark.parametrize(
    ("name", "compression"),
    [("a.gz", Compression.GZIP), ("a.jsonl.zst", Compression.ZSTD), ("a.jsonl", Compression.NONE)],
)
def test_the_names_ending_tells_the_compression(name, compression):
    assert Compression.of(name) is compression


def test_a_file_is_read_by_its_name(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"content"))
    with reading(path) as chunks:
        assert b"".join(chunks) == b"content"


def test_a_file_that_cannot_be_read_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="No such file"), reading(tmp_path / "absent"):
        pass
    with pytest.raises(StorageError, match="directory"), reading(tmp_path) as chunks:
        next(chunks)

import gzip
import hashlib
import io
import os
import threading

import pytest
import zstandard

from dispatcher.errors import InputError, StateError, StorageError
from dispatcher.storage.source import Fingerprint, fingerprint_matches, prepare_source

CONTENT = b'{"custom_id":"a"}\n{"custom_id":"b"}\n'
PACKERS = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def state_dir(tmp_path):
    path = tmp_path / "state"
    path.mkdir()
    return path


@pytest.fixture(params=PACKERS)
def packed(request, tmp_path):
    path = tmp_path / f"input.jsonl{request.param}"
    path.write_bytes(PACKERS[request.param](CONTENT))
    return path


def test_a_plain_file_is_used_in_place(tmp_path, state_dir):
    path = tmp_path / "input.jsonl"
    path.write_bytes(CONTENT)
    source = prepare_source(str(path), state_dir)
    assert (source.path, source.name) == (path, str(path))
    assert source.fingerprint == Fingerprint(len(CONTENT), path.stat().st_mtime_ns, None)
    assert source.fingerprint.with_content("hash").sha256 == "hash"
    assert list(state_dir.iterdir()) == []


def test_an_archive_is_unpacked_into_the_state_directory(packed, state_dir):
    source = prepare_source(str(packed), state_dir)
    assert source.path == state_dir / "input.jsonl"
    assert source.path.read_bytes() == CONTENT
    original = packed.read_bytes()
    assert source.fingerprint == Fingerprint(len(original), packed.stat().st_mtime_ns, sha256(original))
    assert list(state_dir.iterdir()) == [source.path]


def test_an_archives_fingerprint_stays_that_of_the_archive(packed, state_dir):
    first = prepare_source(str(packed), state_dir)
    completed = first.fingerprint.with_content(sha256(CONTENT))
    os.utime(packed, ns=(1, 1))
    assert prepare_source(str(packed), state_dir, expected=completed).path == first.path


def test_standard_input_is_written_to_the_state_directory(state_dir):
    source = prepare_source("-", state_dir, io.BytesIO(CONTENT))
    assert source.path.read_bytes() == CONTENT
    assert source.fingerprint == Fingerprint(len(CONTENT), 0, sha256(CONTENT))


@pytest.mark.parametrize("given", [None, b""], ids=["not given", "empty"])
def test_standard_input_that_says_nothing_means_the_copy_of_the_earlier_run(state_dir, given):
    first = prepare_source("-", state_dir, io.BytesIO(CONTENT))
    stdin = None if given is None else io.BytesIO(given)
    assert prepare_source("-", state_dir, stdin, expected=first.fingerprint) == first
    assert first.path.read_bytes() == CONTENT


def test_the_same_standard_input_may_be_given_again(state_dir):
    first = prepare_source("-", state_dir, io.BytesIO(CONTENT))
    assert prepare_source("-", state_dir, io.BytesIO(CONTENT), expected=first.fingerprint) == first


def test_a_pipe_is_treated_like_standard_input(tmp_path, state_dir):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(CONTENT,))
    writer.start()
    source = prepare_source(str(path), state_dir)
    writer.join()
    assert source.path.read_bytes() == CONTENT
    assert source.fingerprint == Fingerprint(len(CONTENT), 0, sha256(CONTENT))


def test_a_damaged_archive_leaves_nothing_behind(packed, state_dir):
    packed.write_bytes(packed.read_bytes()[:-6])
    with pytest.raises(InputError, match="ends too early") as caught:
        prepare_source(str(packed), state_dir)
    assert str(packed) in str(caught.value)
    assert list(state_dir.iterdir()) == []


def test_a_file_that_is_not_there_is_an_input_error(tmp_path, state_dir):
    with pytest.raises(InputError, match="no such file"):
        prepare_source(str(tmp_path / "absent"), state_dir)
    with pytest.raises(InputError, match="a directory"):
        prepare_source(str(tmp_path), state_dir)


def test_a_disk_that_is_full_is_a_storage_error(packed, state_dir):
    (state_dir / "input.jsonl.partial").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"No space left.*free some space"):
        prepare_source(str(packed), state_dir)
    assert list(state_dir.iterdir()) == []


def test_an_unpacked_archive_is_used_again(packed, state_dir):
    first = prepare_source(str(packed), state_dir)
    first.path.write_bytes(b"kept")
    again = prepare_source(str(packed), state_dir, expected=first.fingerprint)
    assert again == first
    assert again.path.read_bytes() == b"kept"


def test_an_archive_whose_copy_is_gone_is_unpacked_again(packed, state_dir):
    first = prepare_source(str(packed), state_dir)
    first.path.unlink()
    assert prepare_source(str(packed), state_dir, expected=first.fingerprint).path.read_bytes() == CONTENT


def test_another_input_is_refused_and_the_copy_stays(packed, state_dir):
    first = prepare_source(str(packed), state_dir)
    packed.write_bytes(gzip.compress(b"other"))
    with pytest.raises(StateError, match="not the input"):
        prepare_source(str(packed), state_dir, expected=first.fingerprint)
    with pytest.raises(StateError, match="not the input"):
        prepare_source("-", state_dir, io.BytesIO(b"other"), expected=first.fingerprint)
    assert first.path.read_bytes() == CONTENT
    assert list(state_dir.iterdir()) == [first.path]


def test_standard_input_need_not_be_given_twice(state_dir):
    first = prepare_source("-", state_dir, io.BytesIO(CONTENT))
    assert prepare_source("-", state_dir, io.BytesIO(CONTENT), expected=first.fingerprint) == first
    assert prepare_source("-", state_dir, expected=first.fingerprint) == first


def test_standard_input_that_nobody_kept_is_an_input_error(state_dir):
    with pytest.raises(InputError, match="name a file"):
        prepare_source("-", state_dir)
    with pytest.raises(InputError, match="name a file"):
        prepare_source("-", state_dir, expected=Fingerprint(1, 0, "x"))


def test_equal_size_and_time_are_taken_for_equality(tmp_path):
    path = tmp_path / "input.jsonl"
    path.write_bytes(CONTENT)
    assert fingerprint_matches(Fingerprint(len(CONTENT), path.stat().st_mtime_ns, None), path)


def test_a_file_that_was_only_touched_is_the_same(tmp_path):
    path = tmp_path / "input.jsonl"
    path.write_bytes(CONTENT)
    assert fingerprint_matches(Fingerprint(len(CONTENT), 5, sha256(CONTENT)), path)


def test_other_content_of_the_same_size_is_another_file(tmp_path):
    path = tmp_path / "input.jsonl"
    path.write_bytes(CONTENT)
    assert not fingerprint_matches(Fingerprint(len(CONTENT), 5, sha256(b"other")), path)
    assert not fingerprint_matches(Fingerprint(len(CONTENT), 5, None), path)
    assert not fingerprint_matches(Fingerprint(1, path.stat().st_mtime_ns, sha256(CONTENT)), path)

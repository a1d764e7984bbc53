"""Where tables are written: whole, or not at all."""

import io

import pytest

from dispatcher.annotate.places import LocalPlace, StandardOutput
from dispatcher.errors import StorageError


class Closed(io.RawIOBase):
    """A pipe whose reader has gone."""

    def writable(self):
        return True

    def write(self, _piece, /):
        raise BrokenPipeError(32, "Broken pipe")


def put(place, content, *, breaks_off=False):
    with place.writing() as file:
        file.write(content)
        if breaks_off:
            raise ZeroDivisionError


def test_standard_output_gets_a_table_once_it_is_whole(tmp_path):
    stream = io.BytesIO()
    place = StandardOutput(stream, tmp_path / "aside")
    place.check()
    with place.writing() as file:
        file.write(b"a table")
        assert stream.getvalue() == b""
    assert stream.getvalue() == b"a table"
    assert not (tmp_path / "aside").exists()
    assert not place.exists()


def test_half_a_table_never_gets_to_standard_output(tmp_path):
    stream = io.BytesIO()
    with pytest.raises(ZeroDivisionError):
        put(StandardOutput(stream, tmp_path / "aside"), b"half a table", breaks_off=True)
    assert stream.getvalue() == b""


def test_a_reader_that_has_gone_is_told(tmp_path):
    with pytest.raises(StorageError, match="standard output: cannot be written: Broken pipe"):
        put(StandardOutput(Closed(), tmp_path / "aside"), b"a table")


def test_without_a_standard_output_a_file_must_be_named(tmp_path):
    with pytest.raises(StorageError, match="name a file"):
        StandardOutput(None, tmp_path / "aside").check()


def test_a_file_stands_there_when_it_is_whole(tmp_path):
    place = LocalPlace(tmp_path / "out.csv")
    assert not place.exists()
    with pytest.raises(ZeroDivisionError):
        put(place, b"half", breaks_off=True)
    assert list(tmp_path.iterdir()) == []
    put(place, b"whole")
    assert place.exists()
    assert (tmp_path / "out.csv").read_bytes() == b"whole"

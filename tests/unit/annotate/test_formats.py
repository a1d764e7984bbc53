"""Which files make up a table."""

import pytest

from dispatcher.annotate.finding import find_files
from dispatcher.annotate.formats import Format
from dispatcher.errors import InputError


@pytest.fixture
def folder(tmp_path):
    for name in ("b.csv", "a.csv.gz", "sub/c.CSV", ".hidden.csv", "_SUCCESS", "notes.txt", "one.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_a_file_is_a_table(folder):
    files = find_files(str(folder / "one.jsonl"))
    assert ([file.local for file in files.files], files.format) == ([folder / "one.jsonl"], Format.JSONL)


def test_a_pattern_finds_files_by_path(folder):
    files = find_files(f"{folder}/**/*.[cC]*")
    assert [file.local.name for file in files.files] == ["a.csv.gz", "b.csv", "c.CSV"]
    assert files.format is Format.CSV


def test_a_directory_is_searched_but_not_what_is_hidden_in_it(folder):
    (folder / "one.jsonl").unlink()
    assert [file.local.name for file in find_files(str(folder)).files] == ["a.csv.gz", "b.csv", "c.CSV"]


def test_files_of_two_formats_are_no_table(folder):
    with pytest.raises(InputError, match=r"different formats \(CSV, JSON lines\)"):
        find_files(str(folder))


@pytest.mark.parametrize("name", ["none.csv", "*.parquet", "notes.txt", "a.parquet.gz"])
def test_what_is_no_table_is_told(folder, name):
    (folder / "a.parquet.gz").touch()
    with pytest.raises(InputError, match=name.split(".")[0].replace("*", r"\*")):
        find_files(str(folder / name))

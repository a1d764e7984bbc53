import pytest

from dispatcher.errors import StorageError
from dispatcher.ingest.unique import Ids
from dispatcher.jsonl import split_lines


def request(custom_id):
    return b'{"custom_id":"%b","method":"POST","url":"/score","body":{}}\n' % custom_id


def repetitions(tmp_path, texts, names=None, **options):
    path = tmp_path / "input.jsonl"
    path.write_bytes(b"".join(texts))
    found = []
    with path.open("rb") as file, Ids(file, tmp_path, **options) as ids:
        for index, (line, name) in enumerate(zip(split_lines([path.read_bytes()]), names, strict=True)):
            ids.add(name, line, index)
        ids.repetitions(found.append)
    return sorted((each.first_line, each.line, each.index, each.head.custom_id) for each in found)


@pytest.mark.parametrize("records_max", [1, 2, 1000])
@pytest.mark.parametrize("hash_id", [hash, lambda _: 7, len])
def test_repetitions_name_the_first_line_whatever_collides(tmp_path, records_max, hash_id):
    names = ["a", "b", "a", "cc", "b", "a", "dd"]
    texts = [request(name.encode()) for name in names]
    found = repetitions(tmp_path, texts, names, records_max=records_max, hash_id=hash_id)
    assert found == [(1, 3, 2, "a"), (1, 6, 5, "a"), (2, 5, 4, "b")]


def test_ids_are_compared_as_text_not_as_written(tmp_path):
    found = repetitions(tmp_path, [request(b"a"), request(rb"\u0061")], ["a", "a"])
    assert found == [(1, 2, 1, "a")]


def test_collisions_alone_are_no_repetitions(tmp_path):
    names = [str(number) for number in range(50)]
    texts = [request(name.encode()) for name in names]
    assert repetitions(tmp_path, texts, names, hash_id=lambda _: 1) == []


def test_a_line_that_has_changed_meanwhile_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="has changed"):
        repetitions(tmp_path, [request(b"a"), b"{}\n"], ["a", "a"])

import errno

import pytest

from dispatcher.errors import StorageError
from dispatcher.partitions import Partitions


class Collected:
    def __init__(self, pages, keys_max):
        self.records = []
        self.keys = set()
        self.keys_max = keys_max
        pages.append(self)

    def take(self, record):
        if record[0] not in self.keys and len(self.keys) >= self.keys_max:
            return False
        self.keys.add(record[0])
        self.records.append(record)
        return True

    def end(self):
        self.records = tuple(self.records)


def swept(partitions, keys_max=1000):
    pages = []
    partitions.sweep(lambda: Collected(pages, keys_max))
    return [page.records for page in pages]


@pytest.mark.parametrize("records_max", [1, 7, 1000])
def test_every_record_is_shown_once_wherever_it_is_kept(tmp_path, records_max):
    records = [(key * 2**54 - 5 * 2**60, key) for key in range(200)]
    with Partitions(tmp_path, 2, records_max) as partitions:
        for record in records:
            partitions.add(record)
        assert sorted(record for page in swept(partitions) for record in page) == sorted(records)


@pytest.mark.parametrize("records_max", [1, 3, 1000])
def test_equal_keys_meet_in_one_sweep_in_the_order_of_adding(tmp_path, records_max):
    with Partitions(tmp_path, 2, records_max) as partitions:
        for number in range(30):
            partitions.add((number % 3 * 256, number))
        pages = swept(partitions, keys_max=1)
    assert [[number for _, number in page] for page in pages] == [
        list(range(start, 30, 3)) for start in range(3)
    ]


def test_the_extremes_of_64_bits_are_kept(tmp_path):
    with Partitions(tmp_path, 1, 1) as partitions:
        partitions.add((-(2**63),))
        partitions.add((2**63 - 1,))
        assert swept(partitions) == [((-(2**63),),), ((2**63 - 1,),)]


def test_small_numbers_of_records_leave_no_files_and_many_leave_none_behind(tmp_path):
    with Partitions(tmp_path, 1, 10) as partitions:
        (folder,) = tmp_path.iterdir()
        for number in range(9):
            partitions.add((number,))
        assert list(folder.iterdir()) == []
        partitions.add((9,))
        assert len(list(folder.iterdir())) == 10
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="cannot keep intermediate data"):
        Partitions(tmp_path / "absent", 1)


def test_a_full_disk_is_a_storage_error(tmp_path):
    with Partitions(tmp_path, 1, 1) as partitions:
        (folder,) = tmp_path.iterdir()
        (folder / "001").symlink_to("/dev/full")
        with pytest.raises(StorageError, match="No space left") as caught:
            partitions.add((1,))
    assert caught.value.__cause__.errno == errno.ENOSPC

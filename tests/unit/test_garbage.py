import gc

import pytest

from dispatcher import garbage


@pytest.fixture(autouse=True)
def as_it_was():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_cycles_are_looked_for_less_often_and_still_found():
    garbage.collect_rarely()
    collections = gc.get_stats()[0]["collections"]
    for _ in range(garbage.OBJECTS_MAX * 3):
        cycle = []
        cycle.append(cycle)
    looks = gc.get_stats()[0]["collections"] - collections
    assert 1 <= looks <= 4


def test_what_is_loaded_is_left_out_of_every_later_look():
    loaded = [[] for _ in range(1000)]
    garbage.spare_loaded()
    assert gc.get_freeze_count() >= len(loaded)
    assert len(gc.get_objects(generation=2)) < len(loaded)

"""The contract of `ports.Store`, over what needs no service; tests/e2e/test_object_store.py has a real S3."""

from random import Random

import pytest
from obstore.store import MemoryStore
from store_contract import StoreContract

from dispatcher.app.clock import SystemClock
from dispatcher.storage.folder import Folder
from dispatcher.storage.objects import ObjectStorage
from dispatcher.storage.patience import Patience


@pytest.fixture(params=["folder", "objects in memory"])
def store(request, tmp_path):
    if request.param == "folder":
        return Folder(tmp_path)
    memory = MemoryStore()
    return ObjectStorage("memory:", memory, memory, Patience("memory:", SystemClock(), Random(1)))


class TestStores(StoreContract):
    pass

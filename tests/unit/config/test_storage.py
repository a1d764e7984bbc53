from pathlib import Path

import pytest

from dispatcher.config import load_config
from dispatcher.errors import ConfigError

ABFSS = "abfss://container@account.dfs.core.windows.net/p"


def storage(**settings):
    return load_config(None, {"storage": settings}, {}).storage


def test_a_directory_of_this_machine_is_all_there_is():
    assert (storage().local, storage().shared) == (Path("dispatcher-data"), None)
    assert (storage(directory="/data").local, storage(directory="/data").shared) == (Path("/data"), None)
    assert (storage(url="/data").local, storage(url="/data").shared) == (Path("/data"), None)


@pytest.mark.parametrize(
    "url",
    ["s3://bucket", "s3://bucket/some/prefix", "gs://b/p", "az://container/p", ABFSS, "file:///mnt/shared"],
)
def test_with_a_store_the_directory_is_this_nodes_own(url):
    assert (storage(url=url).local, storage(url=url).shared) == (Path("dispatcher-data"), url)
    assert storage(url=f"{url}/", directory="/scratch").local == Path("/scratch")
    assert storage(url=f"{url}/").shared == url


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://host/bucket", "s3://"),
        ("s4://bucket", "s3://"),
        ("s3://key:SECRET@bucket/x", "come from the environment"),
        ("az://container/x?sig=SECRET", "come from the environment"),
        ("s3://bucket/x#SECRET", "come from the environment"),
        (ABFSS.replace("@", ":SECRET@"), "come from the environment"),
        ("abfss://a@SECRET@b/x", "come from the environment"),
        ("s3://", "must be like"),
        ("s3://bucket/sp ace", "must be like"),
        ("file://host/x", "must be like"),
    ],
)
def test_what_cannot_be_a_store_is_refused_and_not_repeated(url, message):
    with pytest.raises(ConfigError, match=message) as raised:
        storage(url=url)
    assert str(raised.value).startswith("storage.url")
    assert "SECRET" not in str(raised.value)


def test_a_directory_is_named_once():
    with pytest.raises(ConfigError, match=r"storage\.directory"):
        storage(url="/data", directory="/scratch")

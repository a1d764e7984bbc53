"""All places that list servers, together."""

import subprocess
import sys

import pytest

from dispatcher.app.sources import Membership, Source, check_sources, has_sources, open_sources
from dispatcher.config import DiscoverySettings, load_config
from dispatcher.errors import ConfigError
from dispatcher.model import ServerId, ServerSpec


def spec(name, **fields):
    return ServerSpec(ServerId(f"http://{name}"), f"http://{name}", **fields)


class Lists:
    """A source that yields these lists, one after the other, and then ends."""

    def __init__(self, *lists):
        self._lists = lists

    async def watch(self, _clock, interval_s):
        assert interval_s == 5.0
        for servers in self._lists:
            yield servers


@pytest.fixture
def told():
    return []


async def follow(membership, *sources):
    for source in sources:
        await membership.follow(source, clock=None)


async def test_a_servers_place_is_with_the_first_source_that_lists_it(told):
    static, other = spec("a", limit=1), spec("a", limit=2)
    membership = Membership([Source("servers", [static]), Source("file", [other, spec("b")])], told.append)
    membership.announce()
    assert told == [[static, spec("b")]]


async def test_a_source_that_lists_a_server_no_more_does_not_take_it_from_another(told):
    file = Source("file", [spec("a"), spec("b")], Lists([spec("b")], []))
    name = Source("http://n", [], Lists([spec("a", limit=2), spec("c")], [spec("a", limit=2)]))
    membership = Membership([Source("servers"), file, name], told.append)
    await follow(membership, name, file)
    assert told == [
        [spec("a"), spec("b"), spec("c")],
        [spec("a"), spec("b")],
        [spec("b"), spec("a", limit=2)],
        [spec("a", limit=2)],
    ]


async def test_a_list_that_never_changes_is_told_once(told):
    fixed = Source("servers", [spec("a")])
    await follow(Membership([fixed], told.append), fixed)
    assert told == []


def config(**settings):
    return load_config(None, settings, {})


SOURCES = {
    "servers": {"servers": ["http://a"]},
    "file": {"discovery": {"file": "servers.txt"}},
    "dns": {"discovery": {"dns": ["http://vllm.test"]}},
    "kubernetes": {"discovery": {"kubernetes": {"service": "vllm"}}},
}


@pytest.mark.parametrize("settings", SOURCES.values(), ids=SOURCES)
def test_each_place_that_lists_servers_is_source_enough(settings):
    assert has_sources(config(**settings))


def test_there_is_no_other_place_and_registration_alone_lists_nobody():
    assert {*DiscoverySettings.model_fields, "servers"} == {*SOURCES, "registration"}
    registration = {"tokens": [{"name": "a", "hash": "sha256:" + "0" * 64}]}
    assert not has_sources(config(discovery={"registration": registration}))


def test_without_any_source_the_options_that_give_one_are_named():
    with pytest.raises(ConfigError, match=r"^servers: must name at least one: --server .*file .*dns"):
        check_sources(config())


async def test_a_name_alone_is_source_enough_and_is_not_looked_up_before_it_is_followed(tmp_path):
    file = tmp_path / "servers.txt"
    file.write_text("http://b\n")
    dns = ["http://vllm.test", "srv+http://vllm.test"]
    async with open_sources(config(discovery={"dns": dns}), resolver=object()) as sources:
        assert [(source.name, list(source.servers)) for source in sources] == [
            ("servers", []),
            ("http://vllm.test", []),
            ("srv+http://vllm.test", []),
        ]
    everything = config(servers=["http://a"], discovery={"dns": dns[:1], "file": str(file)})
    async with open_sources(everything) as sources:
        assert [(source.name, list(source.servers)) for source in sources] == [
            ("servers", [spec("a")]),
            ("file", [spec("b")]),
            ("http://vllm.test", []),
        ]


async def test_a_servers_file_that_cannot_be_read_is_a_fault_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        async with open_sources(config(discovery={"file": str(tmp_path / "absent"), "dns": ["http://a"]})):
            pass


def test_what_looks_names_up_is_loaded_only_where_there_are_names():
    code = "import sys, dispatcher.app.run; print('dns' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

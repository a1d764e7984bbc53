"""Lists of servers and of names: what is refused, where, and together with all else that is wrong."""

import json

import pytest

from dispatcher.config import load_config
from dispatcher.config.servers import NAMES_MAX, SERVERS_MAX
from dispatcher.errors import ConfigError

NAME = "http://vllm.example:8000"


def faults_of(overrides, environ=None, path=None):
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides, environ or {})
    return {fault.where: fault.message.removesuffix(" (from arguments)") for fault in caught.value.faults}


def test_every_entry_that_is_no_server_is_named_together_with_all_other_faults():
    listed = [
        "http://good",
        "nowhere",
        "ftp://x",
        "http://gpu[b-a]",
        "http://good/v1/models",
        "http://h:99999",
    ]
    named = [NAME, "srv+ftp://x", "http://10.0.0.7:8000"]
    faults = faults_of(
        {"servers": listed, "discovery": {"dns": named}, "pool": {"stall_s": -1}, "queue": {"shard_size": 0}}
    )
    assert list(faults) == [
        *(f"servers[{position}].url" for position in range(1, 6)),
        "discovery.dns[1].url",
        "discovery.dns[2].url",
        "pool.stall_s",
        "queue.shard_size",
    ]
    assert faults["servers[2].url"] == faults["discovery.dns[1].url"] == "must be http or https"


@pytest.mark.parametrize("place", ["servers", "discovery.dns"])
def test_an_entry_is_named_by_the_line_that_it_stands_on(tmp_path, place):
    path = tmp_path / "config.yaml"
    listed = "- http://a.example:1\n    - ftp://b\n    - {url: http://c.example,\n       limit: 0}\n"
    *above, name = place.split(".")
    path.write_text("".join(f"{section}:\n" for section in above) + f"  {name}:\n    {listed}")
    if not above:
        path.write_text(f"{name}:\n    {listed}")
    first = len(above) + 2
    assert faults_of({}, path=path) == {
        f"{place}[1].url": f"must be http or https (from {path}:{first + 1})",
        f"{place}[2].limit": f"must be greater than or equal to 1, got 0 (from {path}:{first + 3})",
    }


@pytest.mark.parametrize("other", [{"limit": 2}, {"api_key": "k"}, {"headers": {"A": "b"}}])
@pytest.mark.parametrize(
    ("setting", "place"), [({"servers": ...}, "servers"), ({"discovery": {"dns": ...}}, "discovery.dns")]
)
def test_what_is_listed_twice_with_different_settings_is_a_fault_of_the_second(setting, place, other):
    entries = ["http://vllm[1-2].example", "http://c.example", {"url": "HTTP://vllm2.example:80/v1", **other}]
    given = json.loads(json.dumps(setting, default=lambda _: entries))
    message = "lists http://vllm2.example again with other settings"
    assert faults_of({**given, "results": {"sync_s": 0}}) == {
        f"{place}[2]": message,
        "results.sync_s": "must be greater than 0, got 0",
    }


def test_what_is_listed_twice_alike_is_fine():
    entry = {"url": "http://vllm.example:80", "limit": 3, "headers": {"A": "b"}}
    load_config(None, {"servers": [entry, entry], "discovery": {"dns": [entry, entry]}}, {})


def test_a_list_of_the_largest_size_is_taken_and_one_more_is_a_fault_whether_in_one_range_or_in_two():
    assert (
        len(load_config(None, {"servers": [f"http://gpu[1-{SERVERS_MAX}]"]}, {}).servers[0].urls)
        == SERVERS_MAX
    )
    assert "more than" in faults_of({"servers": [f"http://gpu[0-{SERVERS_MAX}]"]})["servers[0].url"]
    two = [f"http://gpu[1-{SERVERS_MAX}]", "http://gpu0"]
    assert faults_of({"servers": two}) == {"servers[1]": f"brings the list above {SERVERS_MAX} entries"}


def test_as_many_names_as_allowed_are_taken_and_no_more():
    names = {"discovery": {"dns": [f"http://vllm[1-{NAMES_MAX}].example"]}}
    assert len(load_config(None, names, {}).discovery.dns[0].urls) == NAMES_MAX
    names["discovery"]["dns"].append("http://vllm0.example")
    assert faults_of(names) == {"discovery.dns[1]": f"brings the list above {NAMES_MAX} entries"}


@pytest.mark.parametrize(
    "text",
    [
        f"{NAME} srv+http://_http._tcp.vllm.example",
        f"{NAME},srv+http://_http._tcp.vllm.example",
        f'["{NAME}", {{"url": "srv+http://_http._tcp.vllm.example"}}]',
    ],
)
def test_names_in_a_variable_are_written_as_servers_are(text):
    discovery = load_config(None, {}, {"DISPATCHER_DISCOVERY__DNS": text}).discovery
    assert [entry.url for entry in discovery.dns] == [NAME, "srv+http://_http._tcp.vllm.example"]


def test_null_takes_back_names_that_a_lower_source_listed(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(f"discovery: {{dns: [{NAME}]}}")
    assert load_config(path, {}, {}).discovery.dns
    assert load_config(path, {}, {"DISPATCHER_DISCOVERY__DNS": "null"}).discovery.dns is None


def test_an_unknown_key_of_a_name_s_entry_is_refused_with_the_nearest_known_one():
    faults = faults_of({"discovery": {"dns": [{"url": NAME, "apikey": "k"}]}})
    assert faults == {"discovery.dns[0].apikey": "is not a setting; did you mean api_key?"}


SECRET = "hunter2"  # noqa: S105  # it is looked for, not used


@pytest.mark.parametrize(
    "listed",
    [
        [f"http://user:{SECRET}@vllm.example"],
        [f"http://vllm.example/?token={SECRET}"],
        [[SECRET]],
        SECRET,
        f'[{{"url": "{NAME}", "api_key": "{SECRET}"',
        [{"url": NAME, "headers": {"X": f"{SECRET}\n"}}],
        [{"url": NAME, "api_key": [SECRET]}],
    ],
    ids=str,
)
def test_no_fault_of_a_name_repeats_what_may_be_a_secret(listed):
    assert SECRET not in str(faults_of({"discovery": {"dns": listed}}))

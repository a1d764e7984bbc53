"""The settings as workers get them."""

import msgspec
import pytest

from dispatcher.app.workers import settings
from dispatcher.app.workers.settings import packed, unpacked, worker_count
from dispatcher.config import load_config
from dispatcher.errors import ConfigError

EVERYTHING = {
    "servers": [
        "http://gpu[01-03]:8000",
        {"url": "https://h/prefix/v1", "api_key": "k1", "headers": {"X-A": "secret"}, "limit": 64},
    ],
    "api_key": "sk-test",
    "discovery": {"file": "servers.yaml", "dns": ["http://vllm:8000"]},
    "pool": {
        "limit": 12,
        "stall_s": 2.5,
        "canary": {"messages": [{"role": "user", "content": "2+2?"}], "expect": "4", "model": "m"},
    },
    "run": {"output": "out.jsonl", "state_dir": "state", "model": "m", "workers": 3},
    "annotate": {"labels": "a,b", "where": ["stars >= 3"], "prompt": "p.md"},
    "telemetry": {"metrics_port": 9100},
}


@pytest.mark.parametrize("values", [{}, EVERYTHING])
def test_a_worker_has_the_very_settings_of_its_run(values):
    config = load_config(None, values, {})
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(packed(config)))
    assert unpacked(sent) == config


def test_the_service_s_keys_are_not_passed_on():
    keys = [{"name": "ann", "hash": f"sha256:{'0' * 64}"}]
    assert unpacked(packed(load_config(None, {"api": {"keys": keys}}, {}))).api.keys == ()


def count(**values):
    return worker_count(load_config(None, {"servers": ["http://a:8000"], **values}, {}))


def test_one_worker_is_this_process_and_any_limit_will_do():
    assert count() == count(pool={"limit": 1}) == 1


def test_as_many_as_asked_for_if_each_can_have_a_permit():
    assert count(run={"workers": 4}, pool={"limit": 4}) == 4
    assert count(run={"workers": 64}) == 64


@pytest.mark.parametrize(
    ("values", "whose"),
    [
        ({"pool": {"limit": 3}}, "pool.limit is 3"),
        ({"servers": [{"url": "http://b:1", "limit": 3}]}, "the limit of http://b:1 is 3"),
        ({"discovery": {"dns": [{"url": "http://c:1", "limit": 3}]}}, "the limit of http://c:1 is 3"),
    ],
)
def test_more_workers_than_permits_at_a_server_are_refused_by_name(values, whose):
    with pytest.raises(ConfigError, match=f"^run.workers: must be at most 3: .*{whose}"):
        count(run={"workers": 4}, **values)


def test_auto_is_one_for_each_core_and_no_more_than_permits(monkeypatch):
    monkeypatch.setattr(settings.os, "sched_getaffinity", lambda _pid: range(6))
    assert count(run={"workers": "auto"}) == 6
    assert count(run={"workers": "auto"}, pool={"limit": 5}) == 5


@pytest.mark.parametrize("value", [0, -1, 65, "many", 1.5, True])
def test_what_is_no_number_of_workers_is_refused(value):
    with pytest.raises(ConfigError, match=r"run\.workers: must be auto or a whole number from 1 to 64"):
        load_config(None, {"run": {"workers": value}}, {})

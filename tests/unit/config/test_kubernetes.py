"""Entries of `discovery.kubernetes`."""

import pytest

from dispatcher.config import load_config
from dispatcher.errors import ConfigError


def entries(value, environ=None):
    return load_config(None, {"discovery": {"kubernetes": value}}, environ or {}).discovery.kubernetes


def faults(value):
    with pytest.raises(ConfigError) as caught:
        entries(value)
    return [(fault.where, fault.message.removesuffix(" (from arguments)")) for fault in caught.value.faults]


def test_one_entry_needs_no_list_and_in_the_environment_it_is_json():
    (alone,) = entries({"service": "vllm", "port": "8000"})
    assert (alone.service, alone.port, alone.scheme) == ("vllm", 8000, "http")
    environ = {"DISPATCHER_DISCOVERY__KUBERNETES": '{"service": "vllm", "port": 8000}'}
    assert entries(None, environ) == (alone,)
    environ = {"DISPATCHER_DISCOVERY__KUBERNETES": '[{"service": "vllm", "port": 8000}]'}
    assert entries(None, environ) == (alone,)


def test_a_service_is_selected_by_the_label_that_its_slices_carry():
    named, selected = entries([{"service": "vllm"}, {"selector": "app=vllm"}])
    assert named.label_selector == "kubernetes.io/service-name=vllm"
    assert selected.label_selector == "app=vllm"


def test_a_source_is_named_by_all_that_tells_it_from_others():
    listed = [
        {"service": "vllm"},
        {"service": "vllm", "port": "http"},
        {"service": "vllm", "namespace": "gpu", "port": 8000},
        {"selector": "app=vllm", "namespace": "gpu", "context": "east"},
    ]
    assert [str(entry) for entry in entries(listed)] == [
        "kubernetes:vllm",
        "kubernetes:vllm:http",
        "kubernetes:gpu/vllm:8000",
        "kubernetes:east/gpu/app=vllm",
    ]


@pytest.mark.parametrize(
    "selector",
    [
        "app",
        "!app",
        "app=vllm",
        "app==vllm,tier!=test",
        "app=",
        "example.org/app in (a, b), tier notin (c),x",
        "app.kubernetes.io/name=vllm",
    ],
)
def test_label_selectors_are_taken(selector):
    assert entries({"selector": selector})[0].selector == selector


@pytest.mark.parametrize("selector", ["app=a b", "app in a", "=a", "app,", "app=-a", "app&x=1", "app\nx"])
def test_what_is_no_label_selector_is_refused(selector):
    ((where, message),) = faults({"selector": selector})
    assert where == "discovery.kubernetes[0].selector"
    assert message.startswith("must be a label selector such as app=vllm")


@pytest.mark.parametrize("port", [1, 65_535, "http", "8080-x", "a"])
def test_ports_have_numbers_or_names(port):
    assert entries({"service": "vllm", "port": port})[0].port == port


@pytest.mark.parametrize("port", [0, 65_536, "http_x", "-a", "sixteen-letters-x", "", True])
def test_what_is_no_port_is_refused(port):
    ((where, message),) = faults({"service": "vllm", "port": port})
    assert where == "discovery.kubernetes[0].port"
    assert message.startswith("must be a port's number or name")


BAD = {
    "nothing to look for": ({}, "discovery.kubernetes[0]", "must have either service or selector"),
    "both": (
        {"service": "a", "selector": "a"},
        "discovery.kubernetes[0]",
        "must have either service or selector",
    ),
    "no name": (
        {"service": "Vllm"},
        "discovery.kubernetes[0].service",
        "must be up to 63 small letters, digits and dashes, got Vllm",
    ),
    "no namespace": (
        {"service": "a", "namespace": "x/y"},
        "discovery.kubernetes[0].namespace",
        "must be up to 63 small letters, digits and dashes, got x/y",
    ),
    "no host": (
        {"service": "a", "host_name": "a..b"},
        "discovery.kubernetes[0].host_name",
        "must be a host's name, got a..b",
    ),
    "a misspelt field": (
        {"service": "a", "namspace": "x"},
        "discovery.kubernetes[0].namspace",
        "is not a setting; did you mean namespace?",
    ),
    "twice the same": (
        [{"service": "a", "limit": 1}, {"service": "a"}],
        "discovery.kubernetes",
        "must list the same services and port once",
    ),
    "no entry": ([], "discovery.kubernetes", "must not be empty"),
}


@pytest.mark.parametrize(("value", "where", "message"), BAD.values(), ids=BAD)
def test_a_faulty_entry_is_named_with_what_would_be_right(value, where, message):
    assert faults(value) == [(where, message)]


def test_keys_of_an_entry_are_not_repeated_in_errors():
    ((_, message),) = faults({"service": "a", "api_key": "sesame open"})
    assert "sesame" not in message

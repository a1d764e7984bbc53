"""EndpointSlices: events in, membership out."""

import pytest
from endpoint_slices import endpoint, slice_of

from dispatcher.discovery.slices import Address, Bookmark, Changed, Removed, Slices


def slices(*listed, port=None):
    known = Slices(port)
    known.replace(listed, "7")
    return known


def where(known):
    listing = known.listing()
    return [f"{each.host}:{each.port}" for each in listing.addresses]


def test_every_endpoint_is_a_server_at_the_only_port_in_order():
    known = slices(
        slice_of("a", endpoint("10.0.0.9", "p9"), endpoint("10.0.0.7", "p7")),
        slice_of("b", endpoint("10.0.0.8", "p8")),
    )
    assert known.listing().addresses == tuple(
        Address("IPv4", f"10.0.0.{last}", 8000, "vllm") for last in (7, 8, 9)
    )
    assert known.listing().problem is None


READINESS = {
    "ready": {"ready": True, "serving": True, "terminating": False},
    "not ready": {"ready": False, "serving": False, "terminating": False},
    "unknown": {},
    "null": {"ready": None, "serving": None, "terminating": None},
}


@pytest.mark.parametrize("conditions", READINESS.values(), ids=READINESS)
def test_an_endpoint_is_a_server_whether_it_is_ready_or_not(conditions):
    assert where(slices(slice_of("a", endpoint("10.0.0.1", "p", **conditions)))) == ["10.0.0.1:8000"]


@pytest.mark.parametrize("serving", [True, False])
def test_one_that_terminates_is_none_though_it_still_answers(serving):
    conditions = {"ready": False, "serving": serving, "terminating": True}
    known = slices(slice_of("a", endpoint("10.0.0.1", "p", **conditions), endpoint("10.0.0.2", "q")))
    assert where(known) == ["10.0.0.2:8000"]


def test_a_pod_that_two_slices_hold_is_one_server():
    """It is so while the controller moves endpoints between slices, and for two Services of the same pods."""
    known = slices(
        slice_of("a", endpoint("10.0.0.1", "p")),
        slice_of("b", endpoint("10.0.0.1", "p")),
        slice_of("c", endpoint("10.0.0.1", "p"), service="vllm-headless"),
    )
    assert known.listing().addresses == (Address("IPv4", "10.0.0.1", 8000, "vllm"),)


@pytest.mark.parametrize("uid", ["p", None])
def test_of_two_copies_of_an_endpoint_the_one_that_terminates_is_the_later(uid):
    known = slices(
        slice_of("a", endpoint("10.0.0.1", uid)), slice_of("b", endpoint("10.0.0.1", uid, terminating=True))
    )
    assert where(known) == []


def test_an_address_that_a_new_pod_has_taken_over_is_a_server_while_the_old_one_still_terminates():
    known = slices(slice_of("a", endpoint("10.0.0.1", "old", terminating=True), endpoint("10.0.0.1", "new")))
    assert where(known) == ["10.0.0.1:8000"]


def test_a_pod_with_addresses_of_both_families_is_one_server_at_its_ipv4_address():
    known = slices(
        slice_of("six", endpoint("2001:db8::1", "p"), endpoint("2001:db8::2", "q"), kind="IPv6"),
        slice_of("four", endpoint("10.0.0.1", "p")),
    )
    assert where(known) == ["10.0.0.1:8000", "2001:db8::2:8000"]


def test_of_an_endpoints_addresses_the_first_counts_and_one_without_any_is_none():
    first = endpoint("10.0.0.1", "p") | {"addresses": ["10.0.0.1", "10.0.0.2"]}
    known = slices(slice_of("a", first, endpoint("10.0.0.3", "q") | {"addresses": []}))
    assert where(known) == ["10.0.0.1:8000"]


def test_a_slice_without_endpoints_is_a_service_without_servers():
    known = slices(slice_of("a"))
    assert (where(known), known.listing().problem, len(known)) == ([], None, 1)


SEVERAL = (
    {"name": "metrics", "port": 9000, "protocol": "TCP"},
    {"name": "http", "port": 8000, "protocol": "TCP"},
    {"name": "quic", "port": 8000, "protocol": "UDP"},
)


@pytest.mark.parametrize(
    ("port", "expected"),
    [(None, 8000), ("http", 8000), ("metrics", 9000), (9000, 9000), (8443, 8443)],
)
def test_a_port_is_named_numbered_or_the_usual_one(port, expected):
    known = slices(slice_of("a", endpoint("10.0.0.1", "p"), ports=SEVERAL), port=port)
    assert where(known) == [f"10.0.0.1:{expected}"]


def test_each_slice_has_its_own_number_for_a_named_port():
    other = ({"name": "http", "port": 8001, "protocol": "TCP"},)
    known = slices(
        slice_of("a", endpoint("10.0.0.1", "p")), slice_of("b", endpoint("10.0.0.2", "q"), ports=other)
    )
    assert where(known) == ["10.0.0.1:8000", "10.0.0.2:8001"]


PORTLESS = {
    "no such name": ("grpc", SEVERAL, "has no TCP port named grpc, but http (8000), metrics (9000)"),
    "udp": ("quic", SEVERAL, "has no TCP port named quic, but http (8000), metrics (9000)"),
    "none": (None, (), "has none: set port"),
    "several": (None, (SEVERAL[0], {"name": "x", "port": 1}), "has metrics (9000), x (1): set port"),
    "no number": (None, ({"name": "any", "port": None},), "has none: set port"),
}


@pytest.mark.parametrize(("port", "ports", "problem"), PORTLESS.values(), ids=PORTLESS)
def test_endpoints_without_a_port_are_left_out_and_that_is_said(port, ports, problem):
    known = slices(slice_of("a", endpoint("10.0.0.1", "p"), ports=ports), port=port)
    assert (where(known), known.listing().problem) == ([], f"the Service vllm {problem}")


def test_slices_that_cannot_be_used_do_not_hinder_others():
    alone = slice_of("alone", endpoint("10.0.0.1", "p"), ports=(), service=None)
    known = slices(alone, slice_of("a", endpoint("10.0.0.2", "q")))
    assert where(known) == ["10.0.0.2:8000"]
    assert known.listing().problem == "the slice alone has none: set port"


def test_changes_are_taken_in_and_the_version_goes_with_them():
    known = slices(slice_of("a", endpoint("10.0.0.1", "p")))
    assert known.version == "7"
    seen = []
    for change in (
        Changed(slice_of("b", endpoint("10.0.0.2", "q"), version="8")),
        Changed(slice_of("b", endpoint("10.0.0.3", "r"), version="9")),
        Bookmark("12"),
        Removed("a", "13"),
        Removed("never seen", "14"),
    ):
        known.apply(change)
        seen.append((known.version, where(known)))
    assert seen == [
        ("8", ["10.0.0.1:8000", "10.0.0.2:8000"]),
        ("9", ["10.0.0.1:8000", "10.0.0.3:8000"]),
        ("12", ["10.0.0.1:8000", "10.0.0.3:8000"]),
        ("13", ["10.0.0.3:8000"]),
        ("14", ["10.0.0.3:8000"]),
    ]


def test_a_list_replaces_everything():
    known = slices(slice_of("a", endpoint("10.0.0.1", "p")), slice_of("b", endpoint("10.0.0.2", "q")))
    known.replace([slice_of("b", endpoint("10.0.0.3", "r"))], "20")
    assert (known.version, where(known)) == ("20", ["10.0.0.3:8000"])

"""Names and the servers that their records stand for: whatever is written, whatever is answered."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.config import ServerEntry, parse_dns_name
from dispatcher.config.urls import base_url

LABEL = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,20}[a-z0-9])?", fullmatch=True)
HOSTS = st.lists(LABEL, min_size=1, max_size=5).map(".".join).filter(lambda host: not host[-1].isdigit())
PORTS = st.integers(1, 65_535)
SCHEMES = st.sampled_from(["http", "https", "HTTP"])
PREFIXES = st.sampled_from(["", "/", "/v1", "/v1/", "/team-a", "/team-a/v1"])
ADDRESSES = st.ip_addresses().map(str)


@st.composite
def names(draw):
    scheme, host, prefix = draw(SCHEMES), draw(HOSTS), draw(PREFIXES)
    if draw(st.booleans()):
        return f"srv+{scheme}://{host}{prefix}"
    port = draw(st.none() | PORTS)
    return f"{scheme}://{host}{'' if port is None else f':{port}'}{prefix}"


@given(names())
def test_every_well_formed_name_is_read_and_its_spelling_is_read_as_the_same(text):
    name = parse_dns_name(text)
    assert parse_dns_name(str(name)) == name
    assert name.srv == text.startswith("srv+")


@given(names(), ADDRESSES | HOSTS, PORTS)
def test_every_record_makes_a_url_that_a_server_could_be_listed_by(text, host, port):
    url = parse_dns_name(text).url(host, port)
    assert base_url(url) == url
    assert ServerEntry(url=url).urls == [url]


@given(names(), st.ip_addresses(v=6), PORTS)
def test_ways_to_write_an_address_make_one_server(text, address, port):
    name = parse_dns_name(text)
    assert name.url(str(address), port) == name.url(address.exploded.upper(), port)
    assert ipaddress.IPv6Address(name.url(str(address), port).partition("[")[2].partition("]")[0]) == address


@given(st.text(max_size=40) | st.text("srv+htp:/.[]@_-1a\u00e4", max_size=40))
def test_any_text_is_read_or_refused_with_a_reason_and_nothing_else(text):
    try:
        name = parse_dns_name(text)
    except ValueError as error:
        refusal = error
    else:
        assert name.host.isascii()
        assert parse_dns_name(str(name)) == name
        return
    assert type(refusal) is ValueError
    assert str(refusal)


@given(st.text(max_size=30), st.integers(-1, 70_000))
def test_any_record_makes_a_url_or_is_refused(host, port):
    name = parse_dns_name("srv+http://vllm.test")
    try:
        url = name.url(host, port)
    except ValueError:
        return
    assert base_url(url) == url


@pytest.mark.parametrize("text", ["http://0x7f.1", "http://1.2.3", "http://007.1.1.1"])
def test_numbers_that_only_look_like_an_address_are_names(text):
    assert parse_dns_name(text).host == text.removeprefix("http://")

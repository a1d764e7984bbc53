"""Names whose DNS records are servers, as they are written."""

import pytest

from dispatcher.config import DnsName, parse_dns_name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://vllm.ns.svc.cluster.local:8000", DnsName("http", "vllm.ns.svc.cluster.local", 8000, "")),
        ("vllm:8000/v1", DnsName("http", "vllm", 8000, "")),
        ("HTTPS://VLLM.Example/team/v1/", DnsName("https", "vllm.example", None, "/team")),
        ("http://vllm.example.:80", DnsName("http", "vllm.example.", None, "")),
        ("http://köln.example:1", DnsName("http", "xn--kln-sna.example", 1, "")),
        (
            "srv+http://_http._tcp.vllm.example/v1",
            DnsName("http", "_http._tcp.vllm.example", None, "", srv=True),
        ),
        ("SRV+HTTPS://vllm.service.consul/t", DnsName("https", "vllm.service.consul", None, "/t", srv=True)),
    ],
)
def test_a_name_says_what_to_look_up_and_what_its_servers_urls_have_in_common(text, expected):
    assert parse_dns_name(text) == expected
    assert parse_dns_name(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hunter2", "needs a port or a scheme"),
        ("ftp://hunter2.example", "must be http or https"),
        ("srv+ftp://hunter2.example", "must be http or https"),
        ("srv+hunter2.example", r"needs a scheme, as in srv\+http"),
        ("srv+hunter2.example:80", "needs a scheme"),
        ("srv+srv+http://hunter2.example", "must be http or https"),
        ("srv+http://hunter2.example:8000", "must hold no port"),
        ("srv+http://hunter2.example:80", "must hold no port"),
        ("http://10.0.0.7:8000", "holds an address"),
        ("http://[::1]:8000", "holds an address"),
        ("srv+http://10.0.0.7", "holds an address"),
        ("http://hunter2..example", "has no host"),
        (f"http://hunter2.{'x' * 64}.example", "has no host"),
        (f"http://hunter2.{'ö' * 63}.example", "has no host"),
        (f"http://hunter2{'.xxxxxxxxx' * 25}", "has no host"),
        ("srv+http://", "has no host"),
        ("http://hunter2.example/v1/models", "must end with /v1"),
        ("", "needs a port or a scheme"),
    ],
)
def test_what_is_no_name_is_refused_with_a_reason_that_does_not_repeat_it(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_dns_name(text)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "host", "port", "url"),
    [
        ("http://vllm:8000/team", "10.0.0.7", 8000, "http://10.0.0.7:8000/team"),
        ("http://vllm", "10.0.0.7", None, "http://10.0.0.7"),
        ("http://vllm:8000", "2001:DB8:0:0:0:0:0:1", 8000, "http://[2001:db8::1]:8000"),
        ("srv+https://vllm", "gpu1.example", 443, "https://gpu1.example"),
        ("srv+http://vllm/team", "GPU1.example", 31000, "http://gpu1.example:31000/team"),
    ],
)
def test_a_record_becomes_a_server_s_url(name, host, port, url):
    assert parse_dns_name(name).url(host, port) == url


@pytest.mark.parametrize(("host", "port"), [("gpu1", 0), ("", 8000), ("a b", 8000), ("a..b", 1), ("::x", 1)])
def test_a_record_without_a_host_or_a_port_becomes_none(host, port):
    with pytest.raises(ValueError, match=r"host|URL|spaces|address"):
        parse_dns_name("srv+http://vllm").url(host, port)

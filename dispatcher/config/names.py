"""A name whose DNS records are servers, as the configuration writes it."""

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from dispatcher.config.urls import base_url

SRV = "srv+"
"""Before the scheme: the name has SRV records."""


@dataclass(frozen=True, slots=True)
class DnsName:
    """What to look up, and what the URLs of all servers found have in common."""

    scheme: str
    host: str
    """The name itself, in ASCII."""
    port: int | None
    """Of every address; None is the scheme's own. SRV records have their own."""
    prefix: str
    srv: bool = False

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"{SRV if self.srv else ''}{self.scheme}://{self.host}{port}{self.prefix}"

    def url(self, host: str, port: int | None) -> str:
        """The URL of a server at this address or target. Raises ValueError where there can be none."""
        bracketed = f"[{host}]" if ":" in host else host
        return base_url(f"{self.scheme}://{bracketed}{'' if port is None else f':{port}'}{self.prefix}")


def parse_dns_name(text: str) -> DnsName:
    """Read `http://vllm.example:8000` (addresses) or `srv+http://_http._tcp.vllm.example` (SRV records).

    As in a server's URL, `vllm.example:8000` is http, a path prefix is kept and `/v1` left out.

    Raises:
        ValueError: It is no such thing; the message says what is wrong, without repeating it.
    """
    srv = text[: len(SRV)].lower() == SRV
    url = text[len(SRV) :] if srv else text
    if srv and "://" not in url:
        raise ValueError("needs a scheme, as in srv+http://_http._tcp.vllm.example")
    parts = urlsplit(base_url(url))
    if srv and urlsplit(url).port is not None:
        raise ValueError("must hold no port: SRV records have their own")
    return DnsName(parts.scheme, _name(parts.hostname or ""), parts.port, parts.path, srv)


def _name(host: str) -> str:
    if _is_address(host):
        raise ValueError("holds an address where a name is expected: addresses go under servers")
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError("has no host that could be looked up") from None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

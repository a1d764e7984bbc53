"""One spelling for each server, however its URL was written."""

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?")
_HOST_CHARACTERS_MAX = 253
"""What fits into 255 octets on the wire, and 63 in each label (RFC 1035, section 2.3.4)."""


def base_url(text: str) -> str:
    """Scheme, host, port and path prefix, without `/v1` and without a trailing slash.

    `gpu1:8000` is http. A path before `/v1` is kept, and the scheme's own port left out.

    Raises:
        ValueError: It is not the URL of a server; the message says what is wrong, without repeating it.
    """
    if not text.isprintable() or " " in text:
        raise ValueError("must not hold spaces or control characters")
    parts = _split(text if "://" in text else f"http://{text}")
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError("must be http or https")
    if "://" not in text and parts.port is None:
        raise ValueError("needs a port or a scheme: gpu1:8000, or http://gpu1")
    port = "" if parts.port in {None, _DEFAULT_PORTS[parts.scheme]} else f":{parts.port}"
    return f"{parts.scheme}://{_host(parts.hostname or '')}{port}{_prefix(parts.path)}"


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.port != 0 and not parts.netloc.endswith(":")
    except ValueError:  # urllib's messages repeat pieces of the URL
        usable = False
    if not usable:
        raise ValueError("is not a URL such as http://gpu1:8000")
    return parts


def _host(name: str) -> str:
    if ":" in name:
        return f"[{_ipv6(name)}]"
    if not _HOST.fullmatch(name) or len(name.removesuffix(".")) > _HOST_CHARACTERS_MAX:
        raise ValueError("has no host that could be looked up")
    return name


def _ipv6(address: str) -> str:
    try:
        return ipaddress.IPv6Address(address).compressed
    except ValueError:
        raise ValueError("has brackets that hold no IPv6 address") from None


def _prefix(path: str) -> str:
    prefix = path.rstrip("/").removesuffix("/v1").rstrip("/")
    if "/v1/" in f"{prefix}/":
        raise ValueError("must end with /v1 or before it: routes are added by the dispatcher")
    return prefix

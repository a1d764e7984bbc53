"""What each route asks of whoever calls it. One that is not named here asks for a key."""

from enum import Enum, auto
from functools import lru_cache

from dispatcher.request_line import ROUTES

STATIC = "/static/"
"""The dashboard's scripts and styles: they hold no data."""
ASKED_MAX = 512
"""Methods and routes whose access is remembered; a client may make up methods."""


class Access(Enum):
    """Who may call a route."""

    OPEN = auto()  # anybody
    KEY = auto()  # the holder of any key; the route itself tells users and admins apart
    ADMIN = auto()  # the holder of an admin's key
    TOKEN = auto()  # the holder of a registration token: the route checks it


_NAMED = {
    ("GET", "/"): Access.OPEN,
    ("GET", "/health"): Access.OPEN,
    ("GET", "/healthz"): Access.OPEN,
    ("GET", "/readyz"): Access.OPEN,
    ("GET", "/openapi.json"): Access.OPEN,
    ("POST", "/servers"): Access.ADMIN,
    ("DELETE", "/servers"): Access.ADMIN,
    ("POST", "/servers/drain"): Access.ADMIN,
    ("POST", "/servers/undrain"): Access.ADMIN,
    ("POST", "/servers/register"): Access.TOKEN,
    ("POST", "/servers/deregister"): Access.TOKEN,
}


@lru_cache(ASKED_MAX)
def access_to(method: str, pattern: str | None) -> Access:
    """What a route asks for. `pattern` is None for a route that does not exist: that is not told to all."""
    if pattern is None:
        return Access.KEY
    method = "GET" if method == "HEAD" else method
    if method == "GET" and pattern.startswith(STATIC):
        return Access.OPEN
    return _NAMED.get((method, pattern), Access.KEY)


def is_live(method: str, path: str) -> bool:
    """Whether a request is for a server to answer now, and counts against a key's `live_per_minute`."""
    return method == "POST" and path in ROUTES

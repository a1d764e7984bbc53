"""`/servers/targets`: the servers as a Prometheus finds them, to scrape what they say of themselves.

The form is Prometheus' HTTP service discovery: https://prometheus.io/docs/prometheus/latest/http_sd/
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from dispatcher.api.context import context_of
from dispatcher.model import ServerSpec

PORTS = {"http": 80, "https": 443}
METRICS = "/metrics"


class Target(msgspec.Struct, frozen=True):
    """One server. `labels` has `server`, as all of our own series have it, and how it is reached."""

    targets: tuple[str, ...]
    """Its host and port; always one."""
    labels: dict[str, str]


def routes() -> Iterable[web.RouteDef]:
    """The routes of this module."""
    return (web.get("/servers/targets", list_targets),)


async def list_targets(request: web.Request) -> web.Response:
    """All servers that are watched, whatever their state; by URL."""
    servers = context_of(request).pool.servers
    found = [target_of(servers[server].spec) for server in sorted(servers)]
    return web.Response(body=msgspec.json.encode(found), content_type="application/json")


def target_of(server: ServerSpec) -> Target:
    """Where this server's metrics are: beside its routes, below the same prefix."""
    parts = urlsplit(server.base_url)
    address = parts.netloc if parts.port else f"{parts.netloc}:{PORTS[parts.scheme]}"
    labels = {
        "server": server.id,
        "__scheme__": parts.scheme,
        "__metrics_path__": f"{parts.path}{METRICS}",
    }
    return Target((address,), labels)

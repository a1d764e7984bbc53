"""`/healthz`: the process lives. `/readyz`: it can do its work. `/metrics`: in numbers."""

import asyncio
from collections.abc import Iterable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from dispatcher.api.context import context_of
from dispatcher.telemetry.exporter import exposition


def routes() -> Iterable[web.RouteDef]:
    """The routes of this module."""
    return (
        web.get("/healthz", healthz),
        web.get("/readyz", readyz),
        web.get("/health", readyz),  # what clients of a vLLM server ask before they send
        web.get("/metrics", metrics),
    )


async def healthz(_request: web.Request) -> web.Response:
    """200 for as long as the event loop turns."""
    return web.Response(text="ok\n")


async def readyz(request: web.Request) -> web.Response:
    """200 where work can be taken and done; 503 with the reasons where it cannot, or the service drains."""
    obstacles = context_of(request).obstacles()
    return web.Response(status=503 if obstacles else 200, text="\n".join(obstacles or ["ready"]) + "\n")


async def metrics(request: web.Request) -> web.Response:
    """All series, for a Prometheus. In a thread: with a thousand servers it would hold up requests."""
    body = await asyncio.to_thread(exposition, context_of(request).registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

"""`/openapi.json`: what every route takes and gives, as OpenAPI 3.1. Its source is `openapi.yaml`, here."""

import asyncio
import importlib.metadata
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from aiohttp import web

SOURCE = Path(__file__).with_name("openapi.yaml")
SHARED = "x-shared"
"""Where the file keeps what it repeats: of no use to anyone else."""


class Description:
    """The description as it is served. Read when it is first asked for: it takes 0.2 s, and few ask."""

    def __init__(self) -> None:
        self._body: bytes | None = None
        self._reading = asyncio.Lock()

    async def body(self) -> bytes:
        """JSON."""
        async with self._reading:
            if self._body is None:
                self._body = msgspec.json.encode(await asyncio.to_thread(read_description))
            return self._body


DESCRIPTION: Final = web.AppKey("description", Description)


def routes() -> Iterable[web.RouteDef]:
    """The routes of this module, open to everyone: it is in every copy of the package."""
    return (web.get("/openapi.json", describe),)


async def describe(request: web.Request) -> web.Response:
    """The description of this version."""
    return web.Response(body=await request.app[DESCRIPTION].body(), content_type="application/json")


def read_description() -> dict[str, Any]:
    """The description, with the version of the package. Blocks."""
    description: dict[str, Any] = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    del description[SHARED]
    description["info"]["version"] = importlib.metadata.version("dispatcher")
    return description

"""Servers as request bodies name them."""

import msgspec
from aiohttp import web
from pydantic import ValidationError

from dispatcher.api.bodies import read_record
from dispatcher.api.errors import ApiError
from dispatcher.config import ServerEntry
from dispatcher.config.faults import dotted, explain
from dispatcher.config.urls import base_url
from dispatcher.model import ServerId


class EntryBody(msgspec.Struct, forbid_unknown_fields=True):
    """A server to be added or registered: as an entry of `servers` in the configuration."""

    url: str
    api_key: str | None = None
    headers: dict[str, str] = {}
    limit: int | None = None


class UrlBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which server is meant."""

    url: str


async def read_entry(request: web.Request) -> ServerEntry:
    """Raises ApiError: 400 with every fault. Secrets are not repeated."""
    body = await read_record(request, EntryBody)
    try:
        return ServerEntry.model_validate(msgspec.structs.asdict(body))
    except ValidationError as error:
        faults = [(dotted(place) or "url", text) for place, text in explain(error, lambda _: ())]
    message = "; ".join(f"{where} {text}" for where, text in faults)
    raise ApiError(400, message, code="invalid_server", param=faults[0][0])


async def read_server_id(request: web.Request) -> ServerId:
    """From the query (`?url=`), or else from the body. Raises ApiError (400)."""
    url = request.query.get("url")
    if url is None:
        url = (await read_record(request, UrlBody)).url
    return as_server_id(url)


def as_server_id(url: str) -> ServerId:
    """A server by its URL, in whichever spelling. Raises ApiError (400)."""
    try:
        return ServerId(base_url(url))
    except ValueError as error:
        raise ApiError(400, f"url {error}", code="invalid_server", param="url") from error

"""The live endpoints: requests that a server answers while the client waits, and the models there are."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping

import msgspec
from aiohttp import web

from dispatcher.api.context import CONTEXT, context_of
from dispatcher.api.errors import ApiError
from dispatcher.model import Request
from dispatcher.pool.pool import Pool
from dispatcher.request_line import ROUTES

BAD_REQUEST, NOT_FOUND = 400, 404


def routes() -> Iterable[web.RouteDef]:
    """The routes of this module."""
    return (
        *(web.post(route, answer) for route in sorted(ROUTES)),
        web.get("/v1/models", models),
        web.get("/v1/models/{model:.+}", model),
    )


async def watching(application: web.Application) -> AsyncIterator[None]:
    """Watch over the clients of live requests for as long as the application runs."""
    watch = asyncio.create_task(application[CONTEXT].relay.watch(), name="live")
    yield
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch


async def answer(request: web.Request) -> web.StreamResponse:
    """POST a body to a server that has its `model`: the bytes pass through untouched, both ways."""
    body = await request.read()
    asked = Request(0, "", request.path, _model_of(body), body)
    return await context_of(request).relay.answer(request, asked)


async def models(request: web.Request) -> web.Response:
    """GET /v1/models: what the servers in rotation have, together, in the shape of OpenAI's list."""
    listed = _models(context_of(request).pool)
    data = [_entry(name, created) for name, created in listed.items()]
    return web.json_response({"object": "list", "data": data})


async def model(request: web.Request) -> web.Response:
    """GET /v1/models/NAME: one of them. Raises ApiError (404)."""
    name = request.match_info["model"]
    listed = _models(context_of(request).pool)
    if name not in listed:
        raise ApiError(NOT_FOUND, f"the model {name!r} does not exist", code="model_not_found", param="model")
    return web.json_response(_entry(name, listed[name]))


def _models(pool: Pool) -> Mapping[str, int]:
    """Each model that can be asked for now, with when the first of its servers was started."""
    listed: dict[str, int] = {}
    for server in pool.active():
        started = int(server.started_at or 0)
        for name in filter(server.serves, server.models or ()):
            listed[name] = min(started, listed.get(name, started))
    return listed


def _entry(name: str, created: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created, "owned_by": "dispatcher"}


class _Head(msgspec.Struct, gc=False):
    """What of a body is read here. The server reads the rest."""

    model: str | None = None


_HEADS = msgspec.json.Decoder(_Head)


def _model_of(body: bytes) -> str | None:
    """The model that a body asks for. Raises ApiError where it is no JSON object, or its model no text."""
    try:
        return _HEADS.decode(body).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _examined(body, error)


def _examined(body: bytes, error: Exception) -> str | None:
    r"""The same, of a body that msgspec refuses: JSON allows lone surrogate escapes (`\ud83d`)."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError(BAD_REQUEST, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(BAD_REQUEST, "the body is not a JSON object", code="invalid_json")
    name = value.get("model")
    if not isinstance(name, str | None):
        raise ApiError(BAD_REQUEST, "model is not a string", param="model")
    return name

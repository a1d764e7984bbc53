"""`/servers/register`: servers that say themselves that they are there, and go on saying it."""

from collections.abc import Iterable

import msgspec
from aiohttp import web

from dispatcher.api.auth import CHALLENGE, FORBIDDEN, UNAUTHORIZED, bearer
from dispatcher.api.bodies import read_record
from dispatcher.api.context import context_of
from dispatcher.api.entries import UrlBody, as_server_id, read_entry
from dispatcher.api.errors import ApiError
from dispatcher.api.keyring import Tokens
from dispatcher.api.members import MemberError
from dispatcher.discovery.registration import ForbiddenAddressError, RegistrationError

REFUSED = 422


def routes() -> Iterable[web.RouteDef]:
    """The routes of this module."""
    return (
        web.post("/servers/register", register),
        web.post("/servers/deregister", deregister),
    )


class Registered(msgspec.Struct, frozen=True):
    """The answer to a registration."""

    url: str
    ttl_s: float
    """It is to be renewed within this time, or ends."""


class Deregistered(msgspec.Struct, frozen=True):
    """The answer to the end of one."""

    url: str
    deregistered: bool
    """Whether it was registered."""


async def register(request: web.Request) -> web.Response:
    """Register a server or renew that. The body is that of POST /servers; the URL must be one.

    401: the token is not valid, or nobody may register here. 403: the address is not allowed. 422: the name
    has no address, or the server is another token's.
    """
    token = _token_of(request)
    entry = await read_entry(request)
    try:
        server, ttl_s = await context_of(request).members.register(entry, token)
    except (RegistrationError, MemberError) as error:
        raise _answer(error) from error
    return _json(Registered(server, ttl_s))


async def deregister(request: web.Request) -> web.Response:
    """End a registration: the server's open requests may end."""
    token = _token_of(request)
    server = as_server_id((await read_record(request, UrlBody)).url)
    try:
        removed = await context_of(request).members.deregister(server, token)
    except RegistrationError as error:
        raise _answer(error) from error
    return _json(Deregistered(server, removed))


def _token_of(request: web.Request) -> str:
    """The name of the token that was shown."""
    settings = context_of(request).config.discovery.registration
    secret = bearer(request)
    if secret is None:
        message = "there is no registration token: send one as `Authorization: Bearer TOKEN`"
        raise ApiError(UNAUTHORIZED, message, headers=CHALLENGE)
    name = Tokens(settings.tokens).name_of(secret) if settings else None
    if name is None:
        message = "the registration token is not valid"
        raise ApiError(UNAUTHORIZED, message, code="invalid_token", headers=CHALLENGE)
    return name


def _answer(error: RegistrationError | MemberError) -> ApiError:
    if isinstance(error, ForbiddenAddressError):
        return ApiError(FORBIDDEN, str(error), code="address_forbidden", param="url")
    status = error.status if isinstance(error, MemberError) else REFUSED
    return ApiError(status, str(error), code="registration_refused", param="url")


def _json(answer: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

"""Who is calling: a key in the Authorization header, or, without keys, whoever reaches this machine."""

import ipaddress
import math
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from dispatcher.api.access import Access, access_to, is_live
from dispatcher.api.context import Context
from dispatcher.api.errors import ApiError, Handler
from dispatcher.api.keyring import LOCAL, Keyring, Principal, Role
from dispatcher.config import ApiSettings
from dispatcher.errors import ConfigError, Fault

UNAUTHORIZED, FORBIDDEN, TOO_MANY = 401, 403, 429
PRINCIPAL: Final = web.RequestKey("principal", Principal)
SECRET_CHARACTERS_MAX = 1024
AUTHORITIES_MAX = 256
"""`Host` headers that are remembered: honest clients send one or two."""
CHALLENGE = {"WWW-Authenticate": "Bearer"}
"""https://www.rfc-editor.org/rfc/rfc6750#section-3"""


def require_keys_or_loopback(settings: ApiSettings) -> None:
    """Refuse to be open to a network. Raises ConfigError."""
    if not settings.keys and not is_loopback(settings.host):
        message = (
            f"holds no key, and api.host is {settings.host}: whoever reaches it would be an admin. "
            "Make keys with `dispatcher key NAME --role admin`, or set api.host to 127.0.0.1"
        )
        raise ConfigError((Fault("api.keys", message),))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`. A name but `localhost` could be anything."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def principal_of(request: web.Request) -> Principal:
    """Whom the request comes from: every route but open ones may ask."""
    return request[PRINCIPAL]


def bearer(request: web.Request) -> str | None:
    """The secret in the Authorization header; None where there is none."""
    scheme, _, secret = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if scheme.lower() != "bearer" or not 0 < len(secret) <= SECRET_CHARACTERS_MAX:
        return None
    return secret.strip()


def make_authenticate(context: Context) -> Middleware:
    """The middleware that lets a request pass, or raises ApiError: 401, 403 or 429."""
    keyring = Keyring(context.config.api.keys)
    own_host = context.config.api.host

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        access = access_to(request.method, resource.canonical if resource is not None else None)
        if keyring.is_empty:
            _refuse_other_sites(request, own_host)
        if access is not Access.OPEN and access is not Access.TOKEN:
            principal = _admitted(request, keyring, access)
            request[PRINCIPAL] = principal
            if is_live(request.method, request.path):
                _keep_pace(keyring, principal, context.clock.now())
        return await handler(request)

    return authenticate


def _admitted(request: web.Request, keyring: Keyring, access: Access) -> Principal:
    principal = LOCAL if keyring.is_empty else _holder(request, keyring)
    if access is Access.ADMIN and principal.role is not Role.ADMIN:
        raise ApiError(FORBIDDEN, "only an admin's key may do this", code="admin_required")
    return principal


def _holder(request: web.Request, keyring: Keyring) -> Principal:
    secret = bearer(request)
    if secret is None:
        message = "there is no API key: send one as `Authorization: Bearer KEY`"
        raise ApiError(UNAUTHORIZED, message, headers=CHALLENGE)
    principal = keyring.holder(secret)
    if principal is None:
        raise ApiError(UNAUTHORIZED, "the API key is not valid", code="invalid_api_key", headers=CHALLENGE)
    return principal


def _keep_pace(keyring: Keyring, principal: Principal, now: float) -> None:
    delay_s = keyring.live_delay_s(principal, now)
    if delay_s > 0:
        limit = principal.limits.live_per_minute
        raise ApiError(
            TOO_MANY,
            f"this key may send {limit} live requests per minute",
            code="rate_limit_exceeded",
            headers={"Retry-After": str(math.ceil(delay_s))},
        )


def _refuse_other_sites(request: web.Request, own_host: str) -> None:
    """Without keys, a page of another site that a browser here has open must not act in its user's name.

    A page that makes its own name point here (DNS rebinding) has a foreign Host; one that sends a form or a
    script's request across sites has a foreign Origin.
    """
    authority = request.headers.get(hdrs.HOST)
    if not _is_own(own_host if authority is None else authority, own_host):
        raise ApiError(FORBIDDEN, "without api.keys this service answers to its loopback address only")
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and _authority_of(origin) != (authority or "").lower():
        raise ApiError(FORBIDDEN, "without api.keys other sites' pages may not use this service")


@lru_cache(AUTHORITIES_MAX)
def _is_own(authority: str, own_host: str) -> bool:
    """Whether a `Host` header names this machine. Remembered, for every request asks."""
    host = _host_of(f"//{authority}")
    return is_loopback(host) or host == own_host


def _authority_of(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return "unreadable"


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""

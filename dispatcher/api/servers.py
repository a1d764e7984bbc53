"""`/servers`: what each server does, and changes to which there are."""

from collections.abc import Iterable, Mapping

import msgspec
import structlog
from aiohttp import web

from dispatcher.api.auth import principal_of
from dispatcher.api.context import Context, context_of
from dispatcher.api.entries import read_entry, read_server_id
from dispatcher.api.errors import ApiError
from dispatcher.api.keyring import Role
from dispatcher.api.members import Member, MemberError
from dispatcher.api.reasons import reason_of
from dispatcher.model import ServerId
from dispatcher.pool.server import Server
from dispatcher.pool.states import State

HELD_OUT = "drained"
"""The state shown of a server that an operator drained, once nothing of ours is open there."""


def routes() -> Iterable[web.RouteDef]:
    """The routes of this module."""
    return (
        web.get("/servers", list_servers),
        web.post("/servers", add),
        web.delete("/servers", remove),
        web.post("/servers/drain", drain),
        web.post("/servers/undrain", undrain),
    )


class ServerView(msgspec.Struct, frozen=True):
    """One server, as JSON. Times are seconds since the epoch."""

    url: str
    state: str
    """As in `pool.states.State`, or `drained`."""
    reason: str
    """Why it stands where it stands: in the server's own words for an admin, else by kind."""
    source: str | None
    """Who lists it; null where nobody does any more, and it only finishes what it has."""
    drained: bool
    """Whether an operator holds it out."""
    since: float | None = None
    """When it came to this state; null where it is not watched."""
    in_flight: int = 0
    limit: int = 0
    """Requests it may have in flight now."""
    succeeded: int = 0
    """Rows and live requests answered well since this process found it."""
    failed: int = 0
    """Attempts that ended with a fault of the server."""
    tokens: int = 0
    """Tokens read and generated."""
    evictions: int = 0
    last_fault: str | None = None
    """In the server's own words, for an admin; null for everybody else."""
    last_fault_at: float | None = None
    version: str | None = None
    """vLLM's, as it tells."""
    models: tuple[str, ...] | None = None
    """Served names; null where it has not listed any."""


class ServerList(msgspec.Struct, frozen=True):
    """The answer to GET /servers."""

    data: tuple[ServerView, ...]
    object: str = "list"


async def list_servers(request: web.Request) -> web.Response:
    """All listed servers, and those that still finish what they have; by URL."""
    texts = principal_of(request).role is Role.ADMIN
    return _json(200, ServerList(tuple(server_views(context_of(request), texts=texts))))


async def add(request: web.Request) -> web.Response:
    """Add servers: 201 with them. The URL may be a range."""
    context, entry = context_of(request), await read_entry(request)
    try:
        added = frozenset(await context.members.add(entry))
    except MemberError as error:
        raise _answer(error) from error
    _log_change(request, "added", entry.url)
    return _json(201, ServerList(tuple(view for view in server_views(context) if view.url in added)))


async def remove(request: web.Request) -> web.Response:
    """Take an added server away: 204."""
    server = await read_server_id(request)
    try:
        await context_of(request).members.remove(server)
    except MemberError as error:
        raise _answer(error) from error
    _log_change(request, "removed", server)
    return web.Response(status=204)


async def drain(request: web.Request) -> web.Response:
    """Send a server nothing more, until it is undrained: what it has may end."""
    return await _hold_out(request, hold=True)


async def undrain(request: web.Request) -> web.Response:
    """Give a drained server work again, once it is verified."""
    return await _hold_out(request, hold=False)


def server_views(context: Context, *, texts: bool = True) -> list[ServerView]:
    """What there is to say of each server; without `texts` not in its own words: they may quote a request."""
    listed, watched = context.members.listed(), context.pool.servers
    epoch = context.clock.wall() - context.clock.now()
    now = context.clock.now()
    unwatched = [_unwatched(server, member) for server, member in listed.items() if server not in watched]
    views = [_view(server, listed, epoch, now, texts=texts) for server in watched.values()]
    return sorted((*views, *unwatched), key=lambda view: view.url)


async def _hold_out(request: web.Request, *, hold: bool) -> web.Response:
    context, server = context_of(request), await read_server_id(request)
    try:
        await context.members.hold_out(server, hold=hold)
    except MemberError as error:
        raise _answer(error) from error
    _log_change(request, "drained" if hold else "undrained", server)
    return _json(200, next(view for view in server_views(context) if view.url == server))


def _log_change(request: web.Request, change: str, server: str) -> None:
    log = structlog.get_logger("dispatcher.api")
    log.info("membership_changed", change=change, server=server, by=principal_of(request).name)


def _view(
    server: Server, listed: Mapping[ServerId, Member], epoch: float, now: float, *, texts: bool
) -> ServerView:
    member, record = listed.get(server.spec.id), server.record
    fault_at = record.last_fault_at
    return ServerView(
        url=server.spec.id,
        state=server.state.value,
        reason=reason_of(server, texts=texts),
        source=member.source if member else None,
        drained=member.held_out if member else False,
        since=round(server.machine.since + epoch, 3),
        in_flight=server.in_flight,
        limit=server.limit.permits(now) if server.state is State.ACTIVE else 0,
        succeeded=record.succeeded,
        failed=record.failed,
        tokens=record.tokens,
        evictions=record.evictions,
        last_fault=record.last_fault or None if texts else None,
        last_fault_at=None if fault_at is None else round(fault_at + epoch, 3),
        version=server.version,
        models=None if server.models is None else tuple(server.models),
    )


def _unwatched(server: ServerId, member: Member) -> ServerView:
    return ServerView(server, HELD_OUT, "drained by an operator", member.source, drained=True)


def _answer(error: MemberError) -> ApiError:
    codes = {404: "server_not_found", 409: "server_conflict"}
    return ApiError(error.status, str(error), code=codes.get(error.status), param="url")


def _json(status: int, answer: msgspec.Struct) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(answer), content_type="application/json")

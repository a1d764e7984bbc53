"""`/events`: the service live, as server-sent events.

`hello` comes once, with the last hour's throughput; `snapshot` every second. Who reads too slowly misses
snapshots, and who does not read at all is let go: nothing is kept for anyone.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable

from aiohttp import web

from dispatcher.api.auth import principal_of
from dispatcher.api.errors import ApiError
from dispatcher.api.feed import Feed, View
from dispatcher.api.fleet_picture import URGENCY
from dispatcher.api.keyring import Role

STUCK_S = 20.0
"""How long a watcher may take nothing before it is let go."""
FIND_CHARACTERS_MAX = 200
FEED = web.AppKey("feed", Feed)
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""The last one keeps nginx from collecting what is to be seen at once."""


def routes() -> Iterable[web.RouteDef]:
    """The routes of this module."""
    return (web.get("/events", events),)


async def feeding(application: web.Application) -> AsyncIterator[None]:
    """A cleanup context of the application: the feed runs as long as it does."""
    feed = application[FEED]
    running = asyncio.create_task(feed.run(), name="dashboard feed")
    yield
    running.cancel()
    await asyncio.wait({running})


async def let_go(application: web.Application) -> None:
    """At the application's shutdown: watchers never leave by themselves."""
    application[FEED].close()


async def events(request: web.Request) -> web.StreamResponse:
    """What the one who asks may see. `?find=` and `?state=` choose among the servers."""
    feed, view = request.app[FEED], _view_of(request)
    with feed.watching():
        response = web.StreamResponse(headers=HEADERS)
        await response.prepare(request)
        try:
            await _tell(response, feed, view)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
    return response


async def _tell(response: web.StreamResponse, feed: Feed, view: View) -> None:
    await _write(response, "hello", feed.hello(view))
    while not feed.closed:
        await _write(response, "snapshot", feed.snapshot(view))
        await feed.turn()


async def _write(response: web.StreamResponse, event: str, data: bytes) -> None:
    async with asyncio.timeout(STUCK_S):
        await response.write(b"event: %b\ndata: %b\n\n" % (event.encode(), data))


def _view_of(request: web.Request) -> View:
    find, state = request.query.get("find", ""), request.query.get("state", "")
    if len(find) > FIND_CHARACTERS_MAX:
        raise ApiError(400, f"find has at most {FIND_CHARACTERS_MAX} characters", param="find")
    if state and state not in URGENCY:
        raise ApiError(400, f"state is one of {', '.join(URGENCY)}", param="state")
    principal = principal_of(request)
    return View(principal.name, principal.role is Role.ADMIN, find, state)

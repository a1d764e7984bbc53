"""The least that an aiohttp service can do between client and server: `python forwarder.py PORT URL ...`.

Passes each request on to the next server in turn, and the answer back. It knows no state, no limit, no key
and no second try: what the dispatcher costs beyond it is what the dispatcher does.
"""

import asyncio
import itertools
import sys

import aiohttp
import uvloop
from aiohttp import web
from live_load import HEADERS, ROUTE

from dispatcher.garbage import collect_rarely


def main() -> None:
    """Serve until killed."""
    collect_rarely()  # as the dispatcher does
    uvloop.run(_serve(int(sys.argv[1]), sys.argv[2:]))


async def _serve(port: int, urls: list[str]) -> None:
    turns = itertools.cycle([url + ROUTE for url in urls])
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def forward(request: web.Request) -> web.Response:
            body = await request.read()
            async with session.post(next(turns), data=body, headers=HEADERS) as answer:
                return web.Response(status=answer.status, body=await answer.read(), headers=HEADERS)

        application = web.Application()
        application.router.add_post(ROUTE, forward)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()

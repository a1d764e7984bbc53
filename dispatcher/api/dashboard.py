"""`/`: the dashboard's page and what it is made of. Files as they lie in the package; no data is in them."""

from collections.abc import Iterable
from pathlib import Path

from aiohttp import web

STATIC = Path(__file__).parent / "static"
FILES = {
    "icon.svg": "image/svg+xml",
    "style.css": "text/css",
    "actions.js": "text/javascript",
    "dom.js": "text/javascript",
    "figures.js": "text/javascript",
    "fleet.js": "text/javascript",
    "jobs.js": "text/javascript",
    "main.js": "text/javascript",
    "nodes.js": "text/javascript",
    "plot.js": "text/javascript",
    "stream.js": "text/javascript",
}
"""What is served, by name: no path of a request ever becomes a path on the disk."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # An upgrade must not meet the old page's script, and a package's files may all be of one date.
    "Cache-Control": "no-store",
}


def routes() -> Iterable[web.RouteDef]:
    """The routes of this module, open to everyone: what they serve is in every copy of the package."""
    return (web.get("/", page), web.get("/static/{name}", static))


async def page(_request: web.Request) -> web.StreamResponse:
    """The page; its script asks for the data, with a key where the service wants one."""
    return _file("index.html", "text/html")


async def static(request: web.Request) -> web.StreamResponse:
    """One of the page's files. Raises 404 for any other name."""
    name = request.match_info["name"]
    if name not in FILES:
        raise web.HTTPNotFound
    return _file(name, FILES[name])


def _file(name: str, content_type: str) -> web.FileResponse:
    headers = HEADERS | {"Content-Type": f"{content_type}; charset=utf-8"}
    return web.FileResponse(STATIC / name, headers=headers)

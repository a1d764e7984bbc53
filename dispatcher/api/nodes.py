"""`/nodes`: the processes that share the queue, and what each of them does."""

from collections.abc import Iterable

import msgspec
from aiohttp import web

from dispatcher.api.context import context_of
from dispatcher.jobs.company import NodeView as Known


class NodeView(msgspec.Struct, frozen=True, gc=False):
    """One node, as JSON. Its address is not told: it may be open to other nodes alone."""

    id: str
    host: str
    pid: int
    version: str
    """Of the dispatcher."""
    state: str
    """As in `jobs.company.Presence`. A silent one's figures are its last."""
    started_at: float
    """Seconds since the epoch."""
    silent_s: float
    """Since it was heard of last."""
    in_flight: int
    """Requests of jobs that are open at servers."""
    shards: int
    """Shards that it holds."""
    jobs: int
    """Jobs that it takes through their life: reads in, watches, writes out. It may send rows of any job."""
    rows_per_s: float
    """Answered rows of jobs, over the last minute, as `tokens_per_s`: generated ones."""
    tokens_per_s: float
    here: bool
    """Whether it is the one that was asked."""


class NodeList(msgspec.Struct, frozen=True):
    """The answer to GET /nodes."""

    data: tuple[NodeView, ...]
    object: str = "list"


def routes() -> Iterable[web.RouteDef]:
    """The routes of this module."""
    return (web.get("/nodes", list_nodes),)


async def list_nodes(request: web.Request) -> web.Response:
    """All nodes, by host and age; a silent one for a while, too."""
    context = context_of(request)
    answer = NodeList(node_views(context.company.nodes(), context.node.name))
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


def node_views(nodes: Iterable[Known], here: str) -> tuple[NodeView, ...]:
    """What there is to say of each node; `here` is the one that says it."""
    return tuple(_view(node, here) for node in nodes)


def _view(node: Known, here: str) -> NodeView:
    identity, figures = node.identity, node.figures
    return NodeView(
        id=identity.id,
        host=identity.host,
        pid=identity.pid,
        version=identity.version,
        state=node.presence.value,
        started_at=round(node.started_at, 3),
        silent_s=round(node.silent_s, 1),
        in_flight=figures.in_flight,
        shards=figures.shards_leased,
        jobs=node.driven,
        rows_per_s=round(figures.rows_per_s, 3),
        tokens_per_s=round(figures.tokens_per_s, 1),
        here=identity.id == here,
    )

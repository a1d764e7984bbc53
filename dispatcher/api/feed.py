"""What the dashboard is told, once a second: drawn once for all who may see the same."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import structlog

from dispatcher.api.context import Context
from dispatcher.api.errors import ApiError
from dispatcher.api.fleet_picture import FleetPicture, Wanted, picture_fleet
from dispatcher.api.history import STEP_S, History, Point
from dispatcher.api.jobs_picture import JobsPicture, picture_jobs
from dispatcher.api.nodes import NodeView, node_views
from dispatcher.api.rates import Meter
from dispatcher.jobs.overview import EVERYBODY, Overview

TICK_S = 1.0
WATCHERS_MAX = 100
NODES_SHOWN_MAX = 200


@dataclass(frozen=True, slots=True)
class View:
    """Who looks, and at what. Those with equal views are told the same."""

    owner: str
    admin: bool
    find: str = ""
    state: str = ""


class Throughput(msgspec.Struct, frozen=True, gc=False):
    """Answered rows and generated tokens a second, in the ten seconds from `at`, seconds since the epoch."""

    at: float
    rows_per_s: float
    tokens_per_s: float


class Totals(msgspec.Struct, frozen=True, gc=False):
    """The whole service now. Rates are over the last half minute."""

    rows_per_s: float
    tokens_per_s: float
    in_flight: int
    limit: int


class Snapshot(msgspec.Struct, frozen=True):
    """The service at one moment, for one view."""

    at: float
    """Seconds since the epoch."""
    totals: Totals
    obstacles: tuple[str, ...]
    waiting_for: tuple[str | None, ...]
    """Models that rows wait for and no server in rotation serves; None is any."""
    fleet: FleetPicture
    jobs: JobsPicture
    nodes: tuple[NodeView, ...]
    latest: Throughput | None


class Hello(msgspec.Struct, frozen=True):
    """What a watcher is told first."""

    name: str
    admin: bool
    step_s: float
    history: tuple[Throughput, ...]


class Feed:
    """The meter, the history and the pictures drawn of them. One task runs it; watchers read."""

    def __init__(self, context: Context) -> None:
        self._context = context
        now = context.clock.now()
        self._epoch_s = context.clock.wall() - now
        """Taken once: a step has the same time whenever it is told, whatever becomes of the wall clock."""
        self._meter, self._history = Meter(now), History(now)
        self._drawn: dict[View, bytes] = {}
        self._overviews: Mapping[str | None, Overview] | None = None
        self._turn = asyncio.Event()
        self._watchers = 0
        self.closed = False
        self._log = structlog.get_logger("dispatcher.dashboard")

    async def run(self) -> None:
        """Take stock every second until cancelled."""
        while True:
            await self._context.clock.sleep(TICK_S)
            try:
                self._look()
            except Exception as error:  # noqa: BLE001  # the dashboard must not end with one bad picture
                self._log.error("dashboard_failed", error=repr(error), exc_info=error)
            self._next_turn()

    def close(self) -> None:
        """Let all watchers go. May be called again."""
        self.closed = True
        self._next_turn()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Be counted as a watcher. Raises ApiError where there are too many."""
        if self._watchers >= WATCHERS_MAX:
            raise ApiError(503, f"{WATCHERS_MAX} dashboards are open; close one", code="unavailable")
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1

    async def turn(self) -> None:
        """Wait for the next second. Who is still busy with the last one misses it."""
        await self._turn.wait()

    def hello(self, view: View) -> bytes:
        """The last hour, and what the viewer may do."""
        now = self._context.clock.now()
        points = tuple(self._throughput(point) for point in self._history.points(now))
        return msgspec.json.encode(Hello(view.owner, view.admin, STEP_S, points))

    def snapshot(self, view: View) -> bytes:
        """The service as this view has it, as JSON on one line."""
        drawn = self._drawn.get(view)
        if drawn is None:
            drawn = self._drawn[view] = msgspec.json.encode(self._draw(view))
        return drawn

    def _next_turn(self) -> None:
        turn, self._turn = self._turn, asyncio.Event()
        self._drawn.clear()
        self._overviews = None
        turn.set()

    def _look(self) -> None:
        now = self._context.clock.now()
        rows, tokens = self._meter.look(self._context.pool.servers.values(), now)
        self._history.add(rows, tokens, now)

    def _draw(self, view: View) -> Snapshot:
        context, now = self._context, self._context.clock.now()
        servers = context.pool.servers.values()
        rates = self._meter.of_all()
        latest = self._history.latest()
        return Snapshot(
            at=context.clock.wall(),
            totals=Totals(
                rows_per_s=round(rates.rows_per_s, 3),
                tokens_per_s=round(rates.tokens_per_s, 1),
                in_flight=sum(server.in_flight for server in servers),
                limit=context.pool.permits_total(now),
            ),
            obstacles=tuple(context.obstacles()),
            waiting_for=context.node.waiting.models,
            fleet=picture_fleet(
                servers,
                context.members.listed(),
                self._meter,
                now,
                Wanted(view.find, view.state, texts=view.admin),
            ),
            jobs=picture_jobs(self._jobs(view), context.clock.wall()),
            nodes=node_views(context.company.nodes()[:NODES_SHOWN_MAX], context.node.name),
            latest=None if latest is None else self._throughput(latest),
        )

    def _jobs(self, view: View) -> Overview:
        """The jobs that the viewer may see. All are asked for once, however many look."""
        if self._overviews is None:
            self._overviews = self._context.jobs.overviews()
        return self._overviews.get(EVERYBODY if view.admin else view.owner, Overview())

    def _throughput(self, point: Point) -> Throughput:
        return Throughput(
            round(self._epoch_s + point.at), round(point.rows / STEP_S, 3), round(point.tokens / STEP_S, 1)
        )

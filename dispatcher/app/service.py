"""`serve`: one fleet, one node, any number of jobs, and an HTTP face, until it is told to stop."""

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import structlog
from aiohttp import web

from dispatcher.api.application import make_application
from dispatcher.api.auth import require_keys_or_loopback
from dispatcher.api.context import Context
from dispatcher.api.relay import Relay
from dispatcher.app.clock import SystemClock
from dispatcher.app.company import open_company
from dispatcher.app.fleet import Fleet, open_fleet
from dispatcher.app.joint_members import JointMembers, choose_members
from dispatcher.app.members import Members, open_lookup
from dispatcher.app.queues import identity_of, open_service_queue, shares_jobs
from dispatcher.app.run import STOPS_ENOUGH
from dispatcher.app.storing import Storing, open_storing
from dispatcher.config import Config
from dispatcher.dispatch.node import Node
from dispatcher.errors import ConfigError, ungrouped
from dispatcher.jobs.company import Oneself
from dispatcher.jobs.elsewhere import figures_of
from dispatcher.jobs.housekeeping import Housekeeping
from dispatcher.jobs.jobs import Jobs
from dispatcher.jobs.keeper import JobKeeper
from dispatcher.jobs.places import Places
from dispatcher.jobs.sharing import Sharing
from dispatcher.jobs.threads import Paperwork
from dispatcher.model import NodeId
from dispatcher.queue.nodes import NodeFigures, NodeState
from dispatcher.queue.sql import SqlQueue
from dispatcher.storage.filesystem import StateLock, ensure_writable
from dispatcher.telemetry.exporter import bind_fault, process_registry
from dispatcher.telemetry.metrics import Metrics

UNUSABLE = "the queue or the journals cannot be used just now: the log says why"
"""No more: it is told to whoever asks, and what storage says has paths and other people's jobs in it."""
SHUTDOWN_S = 5.0
"""How long open HTTP requests may go on once the node has stopped."""
HEAD_S = 75.0
"""How long a connection may be without a whole head of a request, be it idle or a head that comes slowly.

aiohttp's `keepalive_timeout` is that: its timer runs from the connection, or the last answer, to the next
whole head, whatever comes between. Longer than usual proxies (60 s) and clients keep idle connections.
"""


class Service:
    """Run it once with `run`; `request_stop` ends it in order, and a second call at once."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.address: tuple[str, int] | None = None
        """Where it listens, once it does."""
        self._stopping = asyncio.Event()
        self._clock = SystemClock()
        self._stops = 0
        self._node: Node | None = None
        self._relay: Relay | None = None
        self._log = structlog.get_logger("dispatcher.service")

    async def run(self) -> None:
        """Serve until stopped.

        Raises DispatcherError: ConfigError for an address that cannot be bound, StateError for a directory
        that another process has locked, StorageError for one that cannot be used.
        """
        with ungrouped():
            async with AsyncExitStack() as stack:
                await self._serve(stack)

    def request_stop(self) -> bool:
        """First: take no more work and wait for what is in flight. Second: end at once.

        From the third on False: who asks so often has seen that the end does not come.
        """
        self._stops += 1
        self._stopping.set()
        if self._stops > 1:
            for part in (self._node, self._relay):
                if part is not None:
                    part.stop()
        return self._stops <= STOPS_ENOUGH

    async def _serve(self, stack: AsyncExitStack) -> None:
        context = await self._open(stack)
        node = context.node
        self.address = await stack.enter_async_context(_listening(make_application(context), self.config))
        # Not before the address is ours: a second service that finds it taken sends nothing.
        working = asyncio.create_task(node.run(until_drained=False), name="node")
        stack.push_async_callback(_ended, node, working)
        self._log.info("serving", host=self.address[0], port=self.address[1], storage=self._place)
        stopping = asyncio.create_task(self._stopping.wait(), name="stop")
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not working.done():
            await self._drain(node, context.relay)

    async def _drain(self, node: Node, relay: Relay) -> None:
        self._log.info("stopping", in_flight=node.desk.in_flight, advice="again to stop at once")
        async with asyncio.TaskGroup() as draining:
            draining.create_task(node.drain(), name="drain node")
            draining.create_task(relay.drain(self.config.dispatch.drain_s), name="drain live")
        self._log.info("stopped", advice="the same command goes on with every job")

    async def _open(self, stack: AsyncExitStack) -> Context:
        """All parts, each opened on the stack, none of them at work yet."""
        require_keys_or_loopback(self.config.api)
        places = Places(self.config.storage.local)
        await asyncio.to_thread(ensure_writable, places.root)
        stack.enter_context(StateLock(places.root))
        registry = process_registry()
        fleet, members = await self._fleet(stack, places, Metrics(registry, role="service"))
        name = NodeId(f"{socket.gethostname()}-{secrets.token_hex(4)}")
        queue = await stack.enter_async_context(
            open_service_queue(self.config, places.queue, fleet.clock, name, self._figures, self._displaced)
        )
        await stack.enter_async_context(members.kept_in(queue))
        storing = await stack.enter_async_context(open_storing(self.config, places, queue, fleet))
        payloads = storing.archive.payloads
        node = self._node = fleet.node(storing.queue, payloads, storing.recorder, name=name)
        jobs = self._jobs(queue, node, storing, places, fleet)
        await jobs.load()
        await stack.enter_async_context(jobs)
        relay = self._relay = _relay(fleet, node)
        oneself = Oneself(identity_of(name), self._figures, lambda: jobs.driven, node.share_out)
        company = await stack.enter_async_context(
            open_company(self.config, queue, oneself, jobs.elsewhere, fleet)
        )
        return Context(
            self.config,
            fleet.clock,
            fleet.pool,
            node,
            members,
            storing.files,
            jobs,
            registry,
            self._obstacles,
            relay,
            company,
        )

    async def _fleet(
        self, stack: AsyncExitStack, places: Places, metrics: Metrics
    ) -> tuple[Fleet, Members | JointMembers]:
        members = await asyncio.to_thread(choose_members, self.config, places.servers, self._clock)
        sources, reserve = members.sources(), self.config.api.live_reserve
        fleet = await stack.enter_async_context(
            open_fleet(self.config, metrics, changing=sources, live_reserve=reserve)
        )
        members.join(fleet.membership, await stack.enter_async_context(open_lookup(self.config)))
        return fleet, members

    def _jobs(self, queue: SqlQueue, node: Node, storing: Storing, places: Places, fleet: Fleet) -> Jobs:
        archive, files, clock = storing.archive, storing.files, fleet.clock
        shared, settings = shares_jobs(self.config), self.config.queue
        paperwork = Paperwork(queue, archive, places.work, settings.shard_size, shared=shared)
        keeper = JobKeeper(queue, node, files, archive, paperwork, clock, shared=shared)
        housekeeping = Housekeeping(keeper, node, files, archive, queue, fleet.metrics, clock)
        sharing = Sharing(keeper, queue, node.name, clock, settings.lease_s) if shared else None
        return Jobs(queue, node, files, archive, keeper, housekeeping, clock, sharing=sharing)

    @property
    def _place(self) -> str:
        storage = self.config.storage
        return storage.shared or str(storage.local)

    def _figures(self) -> NodeFigures:
        state = NodeState.DRAINING if self._stops else NodeState.ACTIVE
        if self._node is None:
            return NodeFigures(state)
        return replace(figures_of(self._node, self._clock.now()), state=state)

    def _displaced(self) -> None:
        """Another service goes on with the jobs: end, at once."""
        self.request_stop()
        self.request_stop()

    def _obstacles(self) -> list[str]:
        node = self._node
        if node is None:
            return ["starting"]
        if self._stops:
            return ["draining"]
        return [] if node.obstacle is None else [UNUSABLE]


def _relay(fleet: Fleet, node: Node) -> Relay:
    return Relay(
        fleet.live(node),
        fleet.transport,
        fleet.monitor.healthy,
        fleet.monitor.carry_out,
        fleet.tracer,
        log_prompts=fleet.config.telemetry.log_prompts,
    )


async def _ended(node: Node, working: "asyncio.Task[None]") -> None:
    """The node's own end; what went wrong in it goes on from here."""
    node.stop()
    await working


@asynccontextmanager
async def _listening(application: web.Application, config: Config) -> AsyncIterator[tuple[str, int]]:
    host, port = config.api.host, config.api.port
    runner = web.AppRunner(
        application, access_log=None, shutdown_timeout=SHUTDOWN_S, keepalive_timeout=HEAD_S
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise ConfigError((bind_fault(error, port, host, "api."),)) from error
        yield host, int(runner.addresses[0][1])
    finally:
        await runner.cleanup()

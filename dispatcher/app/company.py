"""Watches the other nodes while the service runs, where there may be some."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dispatcher.app.fleet import Fleet
from dispatcher.app.queues import shares_jobs
from dispatcher.config import Config
from dispatcher.jobs.company import SILENT_S, Company, Oneself
from dispatcher.jobs.elsewhere import Elsewhere
from dispatcher.queue.sql import SqlQueue


@asynccontextmanager
async def open_company(
    config: Config, queue: SqlQueue, oneself: Oneself, elsewhere: Elsewhere, fleet: Fleet
) -> AsyncIterator[Company]:
    """The nodes of this queue. On a queue of its own a node is alone."""
    lease_s = config.queue.lease_s
    silent_s = min(SILENT_S, lease_s) if shares_jobs(config) else lease_s
    company = Company(oneself, elsewhere, fleet.metrics, fleet.clock, silent_s)
    if config.queue.url is None:
        yield company
        return
    looking = asyncio.create_task(company.run(queue.nodes, queue.custody), name="company")
    try:
        yield company
    finally:
        looking.cancel()
        await asyncio.wait([looking])

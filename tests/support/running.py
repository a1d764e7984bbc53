"""A job in this process, looked at while it runs."""

import asyncio
from contextlib import asynccontextmanager

from dispatcher.app.requests_file import RequestsFile
from dispatcher.app.run import JobRun

WITHIN_S = 30.0


class Running:
    """A job over names, while it runs."""

    def __init__(self, run, job):
        self.run, self.job = run, job
        self.task = asyncio.create_task(run.execute())

    def server(self, server):
        """What the pool says of a server: None where it is no member."""
        return next((view for view in self.run.snapshot().servers if view.server == server.url), None)

    def states(self, *servers):
        return [view.state if (view := self.server(server)) else None for server in servers]

    async def until(self, holds):
        """Wait while the job runs; it must not end before."""
        async with asyncio.timeout(WITHIN_S):
            while not holds():
                assert not self.task.done(), self.task.result()
                await asyncio.sleep(0.005)

    async def end(self, count):
        """All rows have succeeded, each sent once for all that we know of."""
        async with asyncio.timeout(WITHIN_S):
            summary = await self.task
        assert summary.exit_code == 0
        assert self.job.ids == [f"row-{number:05}" for number in range(count)]
        return summary


@asynccontextmanager
async def started(job, config, fleet):
    """The job on this fleet, running; it is ended with the block."""
    running = Running(JobRun(config, RequestsFile(config, str(job.input)), fleet=fleet), job)
    try:
        yield running
    finally:
        running.task.cancel()
        await asyncio.wait([running.task])

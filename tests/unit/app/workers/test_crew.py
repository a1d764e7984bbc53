"""The crew of workers: what it does when they report, die, hang, fail and end."""

import asyncio
import contextlib

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from dispatcher.app.snapshot import Phase, Snapshot
from dispatcher.app.workers.crew import END_S_MAX, Crew
from dispatcher.app.workers.messages import (
    AskSeries,
    Drain,
    Elsewhere,
    Ended,
    Failed,
    Hungry,
    Order,
    Report,
    Stop,
    SuspectsAt,
    TellSeries,
)
from dispatcher.errors import QueueError, ServersUnavailableError, WorkerError
from dispatcher.model import JobId, Tally
from dispatcher.telemetry.metrics import Metrics
from dispatcher.telemetry.sums import Joined, series_of

ORDER = Order(0, 2, "", {}, "in.jsonl", "in.jsonl", {})
SILENT_S = 30.0


def now():
    return asyncio.get_running_loop().time()


class Clock:
    def now(self):
        return now()

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)


class FakeWorker:
    """A worker's process, and its end of the channel, in the hands of a test."""

    def __init__(self, order):
        self.order = order
        self.started_at = now()
        self.told = []
        self.status = 0
        self.pid = 1
        self.channel = self
        self._said = asyncio.Queue()
        self._over = False

    # What the crew does

    def tell(self, message):
        self.told.append(message)
        if message == AskSeries():
            registry = CollectorRegistry()
            Metrics(registry).leases_lost(3)
            self.say(TellSeries(series_of(registry)))

    async def hear(self):
        return None if self._over and self._said.empty() else await self._said.get()

    def kill(self):
        if not self._over:
            self.die(-9)

    async def ended(self):
        self.kill()
        return self.status

    # What the test does

    def say(self, *messages):
        for message in messages:
            self._said.put_nowait(message)

    def report(self, succeeded=0, **more):
        tally = Tally(succeeded=succeeded)
        self.say(Report(Snapshot(Phase.RUNNING, 0, tally, tally, **more)))

    def die(self, status):
        self._over, self.status = True, status
        self.say(None)

    def end(self, last):
        self.say(last)
        self.die(0)

    def heard(self, kind):
        return [message for message in self.told if isinstance(message, kind)]


class Queue:
    def __init__(self):
        self.released = []
        self.faults = 0
        self.settled = Tally()

    async def release_all(self, node):
        if self.faults:
            self.faults -= 1
            raise QueueError("it is locked")
        self.released.append(node)

    async def tally(self, _job, node):
        assert node in self.released
        return self.settled


class Stage:
    """A crew with fake workers."""

    def __init__(self):
        self.started = []
        self.refuses = 0
        self.queue = Queue()
        self.joined = Joined(self._own())
        self.crew = Crew(
            ORDER, JobId("job"), self.queue, Clock(), self.joined, self._start, silent_s_max=SILENT_S
        )

    def _own(self):
        registry = CollectorRegistry()
        Metrics(registry)
        return registry

    async def _start(self, order):
        if self.refuses:
            self.refuses -= 1
            raise OSError(12, "Cannot allocate memory")
        self.started.append(FakeWorker(order))
        return self.started[-1]

    def place(self, number):
        """The latest worker in a place."""
        return next(worker for worker in reversed(self.started) if worker.order.number == number)

    def view(self):
        return self.crew.view(Phase.RUNNING, 100, Tally())


@contextlib.asynccontextmanager
async def at_work():
    stage = Stage()
    stage.run = asyncio.create_task(stage.crew.run())
    await asyncio.sleep(0.1)
    yield stage
    if not stage.run.done():
        stage.crew.stop()
        for worker in stage.started:
            worker.kill()
        await stage.run


async def test_each_worker_has_its_number_and_a_name_that_no_other_has():
    async with at_work() as stage:
        stage.place(0).die(1)
        await asyncio.sleep(2.0)
        orders = [worker.order for worker in stage.started]
        assert [order.number for order in orders] == [0, 1, 0]
        assert len({order.node for order in orders}) == 3


async def test_the_first_to_find_nothing_left_ends_the_others():
    async with at_work() as stage:
        stage.place(0).report(60)
        stage.place(0).end(Ended(nothing_left=True))
        await asyncio.sleep(0.1)
        assert stage.place(1).heard(Stop)
        stage.place(1).report(40)
        stage.place(1).end(Ended(nothing_left=False))
        await stage.run
        assert stage.view().done.succeeded == 100
        assert stage.queue.released == []


async def test_a_dead_workers_leases_go_back_and_another_is_started_after_a_while():
    async with at_work() as stage:
        dead = stage.place(0)
        dead.report(300)
        stage.queue.settled = Tally(succeeded=256)
        await asyncio.sleep(1.0)
        with capture_logs() as logs:
            dead.die(-9)
            await asyncio.sleep(0.1)
        assert [(entry["event"], entry["worker"], entry["again_in_s"]) for entry in logs] == [
            ("worker_died", 1, 0.5)
        ]
        assert "SIGKILL" in logs[0]["reason"]
        assert stage.queue.released == [dead.order.node]
        assert stage.view().done.succeeded == 256
        assert stage.place(0) is dead
        await asyncio.sleep(0.5)
        assert stage.place(0) is not dead


async def test_a_queue_that_fails_is_asked_until_the_leases_are_back():
    async with at_work() as stage:
        stage.queue.faults = 3
        stage.place(0).die(1)
        await asyncio.sleep(5.0)
        assert stage.queue.released == []
        await asyncio.sleep(2.0)
        assert stage.queue.released == [stage.started[0].order.node]


async def test_a_queue_that_fails_at_the_end_does_not_hold_it_up():
    async with at_work() as stage:
        stage.queue.faults = 1000
        stage.crew.request_drain()
        stage.place(0).die(-9)
        stage.place(1).end(Ended(nothing_left=False))
        await stage.run
        assert stage.queue.released == []


async def test_a_worker_that_dies_again_and_again_ends_the_run_and_the_others_in_order():
    async with at_work() as stage:
        while not stage.place(1).heard(Stop):
            stage.place(0).kill()
            await asyncio.sleep(0.5)
        assert sum(worker.order.number == 0 for worker in stage.started) == 5
        assert not stage.run.done(), "it waits for the other one's end"
        stage.place(1).end(Ended(nothing_left=False))
        with pytest.raises(WorkerError, match=r"worker 1 died again and again, .*SIGKILL.* --workers 1"):
            await stage.run


async def test_a_process_that_cannot_be_started_is_a_death():
    async with at_work() as stage:
        stage.refuses = 2
        stage.place(0).die(1)
        with capture_logs() as logs:
            await asyncio.sleep(1.0)
        assert "cannot be started: Cannot allocate memory" in logs[-1]["reason"]
        await asyncio.sleep(4.0)
        assert len(stage.started) == 3


async def test_what_no_other_worker_could_help_ends_the_run_with_the_same_error():
    async with at_work() as stage:
        stage.place(1).end(Failed("ServersUnavailableError", "no server for m within 5 s"))
        await asyncio.sleep(0.1)
        assert stage.place(0).heard(Stop)
        stage.place(0).end(Ended(nothing_left=False))
        with pytest.raises(ServersUnavailableError, match="no server for m within 5 s"):
            await stage.run


async def test_a_drain_is_passed_on_and_each_takes_its_time():
    async with at_work() as stage:
        stage.crew.request_drain()
        stage.place(0).end(Ended(nothing_left=False))
        await asyncio.sleep(20.0)
        assert stage.place(1).heard(Drain) == [Drain()]
        assert not stage.place(1).heard(Stop)
        stage.place(1).end(Ended(nothing_left=False))
        await stage.run


async def test_a_worker_that_dies_while_all_drain_is_not_replaced():
    async with at_work() as stage:
        stage.crew.request_drain()
        stage.place(0).die(-9)
        stage.place(1).end(Ended(nothing_left=False))
        await stage.run
        assert len(stage.started) == 2
        assert stage.queue.released == [stage.place(0).order.node]


async def test_one_that_was_to_be_started_again_is_not_once_the_end_has_come():
    async with at_work() as stage:
        stage.place(0).die(1)
        await asyncio.sleep(0.1)
        stage.crew.request_drain()
        stage.place(1).end(Ended(nothing_left=False))
        at = now()
        await stage.run
        assert (len(stage.started), now()) == (2, at)


async def test_a_silent_worker_is_killed_and_replaced_before_anyone_has_its_shards():
    async with at_work() as stage:
        frozen = stage.place(0)
        while now() < SILENT_S + 3.0:
            stage.place(1).report()
            await asyncio.sleep(0.5)
        assert frozen.status == -9
        assert stage.place(0) is not frozen
        assert stage.place(1).status == 0
        assert stage.queue.released == [frozen.order.node]


async def test_where_this_process_stood_still_nobody_is_called_silent(monkeypatch):
    async with at_work() as stage:
        loop = asyncio.get_running_loop()
        loop._virtual_now += 2 * SILENT_S
        await asyncio.sleep(2.0)
        assert [worker.status for worker in stage.started] == [0, 0]


async def test_a_worker_that_does_not_end_when_told_is_killed():
    async with at_work() as stage:
        stage.crew.stop()
        while not stage.run.done():
            for worker in stage.started:
                worker.report()
            await asyncio.sleep(1.0)
        assert now() == pytest.approx(END_S_MAX, abs=3.0)
        await stage.run


async def test_each_hears_where_the_others_have_suspects():
    async with at_work() as stage:
        stage.place(0).say(SuspectsAt(["http://a:1"]))
        await asyncio.sleep(0.1)
        assert stage.place(1).heard(Elsewhere)[-1] == Elsewhere(["http://a:1"])
        assert stage.place(0).heard(Elsewhere)[-1] == Elsewhere([])
        stage.place(0).die(1)
        await asyncio.sleep(0.1)
        assert stage.place(1).heard(Elsewhere)[-1] == Elsewhere([])


async def test_a_new_worker_hears_where_the_others_have_suspects():
    async with at_work() as stage:
        stage.place(0).say(SuspectsAt(["http://a:1"]))
        stage.place(1).die(1)
        await asyncio.sleep(1.0)
        assert len(stage.started) == 3
        assert stage.place(1).heard(Elsewhere)[0] == Elsewhere(["http://a:1"])


async def test_each_hears_how_many_of_the_others_have_nothing_left_once_it_changes():
    async with at_work() as stage:
        for hungry in (False, True, True, False):
            stage.place(0).say(Report(Snapshot(Phase.RUNNING, 0, Tally(), Tally()), hungry))
            await asyncio.sleep(0.1)
        assert stage.place(1).heard(Hungry) == [Hungry(1), Hungry(0)]
        assert stage.place(0).heard(Hungry) == []


async def test_a_scrape_has_the_figures_of_all_and_waits_for_none_for_long():
    async with at_work() as stage:
        await stage.crew.refresh()
        lost = [family for family in stage.joined.collect() if family.name == "dispatcher_leases_lost"]
        assert lost[0].samples[0].value == 6
        stage.place(0).tell = stage.place(0).told.append
        before = now()
        await stage.crew.refresh()
        assert now() - before == 2.0


async def test_a_crew_that_is_given_up_leaves_no_process():
    async with at_work() as stage:
        stage.run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stage.run
        assert [worker.status for worker in stage.started] == [-9, -9]

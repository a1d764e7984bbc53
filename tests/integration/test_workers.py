"""A run with several workers, each a task of this process: everything but the processes themselves."""

import asyncio
import socket

import pytest
from commands import until
from jobs import row, rows, sends

from dispatcher.app.requests_file import RequestsFile
from dispatcher.app.run import JobRun
from dispatcher.app.snapshot import Phase
from dispatcher.app.workers import opening
from dispatcher.app.workers.channel import Channel
from dispatcher.app.workers.messages import FromParent, FromWorker
from dispatcher.app.workers.worker import Worker
from dispatcher.config import load_config
from dispatcher.errors import ConfigError, ServersUnavailableError, StateError
from dispatcher.results.verify import verify
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.faults import Match
from dispatcher.testing.presets import PRESETS


class TaskProcess:
    """A worker in a task."""

    def __init__(self, channel, task, end):
        self.channel, self.pid, self._task, self._end = channel, 0, task, end

    @classmethod
    async def start(cls, order, lock_descriptor):
        assert lock_descriptor > 2
        ours, theirs = socket.socketpair()
        channel = await Channel.over(ours, FromWorker)
        channel.tell(order)
        end = await Channel.over(theirs, FromParent)

        async def work():
            try:
                await Worker(await end.hear(), end, lambda: None).run()
            finally:
                end.close()

        return cls(channel, asyncio.create_task(work()), end)

    def kill(self):
        self._task.cancel()

    async def ended(self):
        await asyncio.wait([self._task], timeout=0.2)
        self._task.cancel()
        await asyncio.wait([self._task])
        self.channel.close()
        await asyncio.sleep(0)
        return -9


@pytest.fixture
def run_of(job, monkeypatch):
    monkeypatch.setattr(opening, "start_process", TaskProcess.start)

    def make(*servers, workers=2, **settings):
        values = {
            "servers": [getattr(server, "url", server) for server in servers],
            "results": {"sync_s": 0.02},
            "run": {"output": str(job.output), "workers": workers},
            **settings,
        }
        config = load_config(None, values, {})
        return JobRun(config, RequestsFile(config, str(job.input)))

    return make


def assert_proven(job, tmp_path, number):
    report = verify(job.input, job.output, job.errors if job.errors.exists() else None, work_dir=tmp_path)
    assert report.ok, report
    assert report.requests == number


async def test_workers_share_a_job_and_are_one_run_to_whoever_looks(run_of, job, serve, tmp_path):
    servers = [await serve(answer_tokens=1) for _ in range(2)]
    servers[0].inject(PRESETS["context_length_400"], Match(text="bad"))
    servers[1].inject(PRESETS["context_length_400"], Match(text="bad"))
    job.write([row(number, text="bad" if number == 7 else "") for number in range(60)])
    run = run_of(*servers, queue={"shard_size": 10}, pool={"limit": 4})
    summary = await run.execute()
    assert summary.exit_code == 1
    assert_proven(job, tmp_path, 60)
    shown = summary.snapshot
    assert (shown.phase, shown.rows, shown.done.succeeded, shown.done.failed) == (Phase.FINISHED, 60, 59, 1)
    assert shown.done.errors == {"context_length": 1}
    assert shown.this_run == shown.done
    assert sum(shown.by_server.values()) == 59
    assert sorted(sends(*servers)) == sorted(f"row-{number:05}" for number in range(60))


async def test_a_drain_lets_what_is_in_flight_end_and_the_next_run_does_the_rest(
    run_of, job, serve, tmp_path
):
    server = await serve(engine=EngineSettings(max_sequences=4, decode_step_s=0.01), answer_tokens=2)
    job.write(rows(40))
    settings = {"queue": {"shard_size": 5}, "pool": {"limit": 4}}
    run = run_of(server, **settings)
    running = asyncio.create_task(run.execute())
    await until(lambda: len(job.recorded()) >= 5)
    assert run.request_stop()
    summary = await running
    assert summary.exit_code == 3
    recorded = len(job.recorded())
    assert 5 <= summary.snapshot.done.succeeded == recorded == len(sends(server)) < 40
    assert (await run_of(server, **settings).execute()).exit_code == 0
    assert len(sends(server)) == 40
    assert_proven(job, tmp_path, 40)


async def test_what_ends_one_worker_for_good_ends_the_run_with_the_same_words(run_of, job):
    job.write(rows(3))
    with pytest.raises(ServersUnavailableError, match=r"no server for fake-model within 0\.2 s"):
        await run_of("http://127.0.0.1:9", pool={"wait_for_servers_s": 0.2}).execute()
    assert job.state.exists()


async def test_a_state_that_one_process_alone_may_use_is_refused(run_of, job, server, monkeypatch):
    monkeypatch.setattr("dispatcher.app.state.network_filesystem", lambda _path: "nfs4")
    job.write(rows(3))
    with pytest.raises(StateError, match=r"network file system \(nfs4\).*--workers 1"):
        await run_of(server).execute()


async def test_more_workers_than_permits_are_refused_before_anything_is_read(run_of, job, server):
    with pytest.raises(ConfigError, match=r"run\.workers"):
        await run_of(server, workers=3, pool={"limit": 2}).execute()
    assert not job.state.exists()

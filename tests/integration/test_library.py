"""The Python face, over real HTTP: streams with back-pressure both ways, jobs, and blocking code."""

import asyncio
import threading

import pytest
import structlog
from commands import until
from jobs import row, rows, sends

from dispatcher import BlockingDispatcher, Dispatcher, ErrorCode, InputError
from dispatcher.app.stream import AHEAD_MAX
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.faults import Hang, Match
from dispatcher.testing.presets import PRESETS
from dispatcher.testing.server import FakeServer

SLOW = EngineSettings(max_sequences=8, decode_step_s=0.01)
QUICK = {"results": {"sync_s": 0.05}}


async def collected(outcomes):
    return {outcome.custom_id: outcome async for outcome in outcomes}


async def test_a_stream_of_a_list_gives_every_request_one_outcome(server):
    server.inject(PRESETS["context_length_400"], Match(text="row-00003"))
    async with Dispatcher(servers=[server.url]) as d:
        seen = [outcome async for outcome in d.stream(rows(50))]
    assert sorted(outcome.custom_id for outcome in seen) == [request["custom_id"] for request in rows(50)]
    assert [outcome.code for outcome in seen if not outcome.ok] == [ErrorCode.CONTEXT_LENGTH]
    good = next(outcome for outcome in seen if outcome.ok)
    assert good.response["choices"][0]["message"]["content"]
    assert good.provenance.server == server.url


async def test_a_stream_of_an_async_iterable_does_not_wait_for_its_end(server):
    asked = asyncio.Queue()

    async def requests():
        for number in range(3):
            yield row(number)
            await asked.get()

    async with Dispatcher(servers=[server.url]) as d:
        seen = []
        async for outcome in d.stream(requests()):
            seen.append(outcome.custom_id)
            asked.put_nowait(None)
    assert seen == ["row-00000", "row-00001", "row-00002"]


async def test_requests_are_taken_no_faster_than_outcomes(server):
    taken = 0

    def requests():
        nonlocal taken
        for request in rows(2 * AHEAD_MAX):
            taken += 1
            yield request

    async with Dispatcher(servers=[server.url]) as d:
        stream = d.stream(requests())
        await anext(stream)
        await until(lambda: len(sends(server)) >= AHEAD_MAX)
        held = taken
        received = 1
        async for _ in stream:
            received += 1
            assert taken - received <= AHEAD_MAX
    assert held <= AHEAD_MAX + 1
    assert received == taken == 2 * AHEAD_MAX


async def test_a_slow_source_is_not_asked_ahead_of_need(serve):
    """Outcomes come while the source is still at work: nothing waits for a full window."""
    server = await serve()
    gate = asyncio.Event()

    async def requests():
        yield row(0)
        await gate.wait()
        yield row(1)

    async with Dispatcher(servers=[server.url]) as d:
        stream = d.stream(requests())
        assert (await asyncio.wait_for(anext(stream), 10)).custom_id == "row-00000"
        gate.set()
        assert [outcome.custom_id async for outcome in stream] == ["row-00001"]


async def test_leaving_a_stream_early_closes_what_is_in_flight(server):
    server.inject(Hang(), Match(after=5))
    async with Dispatcher(servers=[server.url]) as d:
        stream = d.stream(rows(30))
        async for _ in stream:
            break
        await until(lambda: server.in_flight >= 10)
        open_then = server.in_flight
        await stream.aclose()
        await until(lambda: server.in_flight == 0)
        assert server.disconnects == open_then
        server.clear()
        assert len(await collected(d.stream(rows(5)))) == 5


async def test_an_error_in_the_callers_iterator_reaches_the_caller(server):
    def requests():
        yield from rows(5)
        raise LookupError("the database is gone")

    async with Dispatcher(servers=[server.url]) as d:
        with pytest.raises(LookupError, match="the database is gone"):
            await collected(d.stream(requests()))
        assert len(await collected(d.stream(rows(5)))) == 5


@pytest.mark.parametrize(
    "wrong", [{"custom_id": "a"}, {**row(0), "url": "/v1/files"}, {**row(0), "body": {1, 2}}, "text"]
)
async def test_what_is_no_request_is_an_input_error_that_names_its_place(server, wrong):
    async with Dispatcher(servers=[server.url]) as d:
        with pytest.raises(InputError, match="request 2"):
            await collected(d.stream([row(0), row(1), wrong]))


async def test_two_streams_share_one_dispatcher_and_get_their_own_outcomes(serve):
    servers = [await serve(engine=SLOW, answer_tokens=2), await serve(engine=SLOW, answer_tokens=2)]
    async with Dispatcher(servers=[server.url for server in servers]) as d:
        first, second = await asyncio.gather(
            collected(d.stream(rows(60))), collected(d.stream(row(1000 + n) for n in range(60)))
        )
    assert sorted(first) == [f"row-{n:05}" for n in range(60)]
    assert sorted(second) == [f"row-{n:05}" for n in range(1000, 1060)]


async def test_a_stream_and_a_job_share_one_dispatcher(server, job):
    async with Dispatcher(servers=[server.url], **QUICK) as d:
        summary, outcomes = await asyncio.gather(
            d.run_job(job.write(rows(40)).input, job.output),
            collected(d.stream(row(1000 + n) for n in range(40))),
        )
    assert summary.finished
    assert summary.exit_code == 0
    assert len(job.ids) == len(outcomes) == 40


async def test_run_job_goes_on_after_it_was_cancelled(server, job):
    hung = server.inject(Hang(), Match(text="row-00007"))
    async with Dispatcher(servers=[server.url], **QUICK) as d:
        running = asyncio.create_task(d.run_job(job.write(rows(20)).input, job.output))
        await until(lambda: len(job.recorded()) == 19)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        server.withdraw(hung)
        sent = len(sends(server))
        summary = await d.run_job(job.input, job.output)
    assert summary.exit_code == 0
    assert sends(server)[sent:] == ["row-00007"]


async def test_run_job_takes_the_settings_of_a_run(server, job, tmp_path):
    server.inject(PRESETS["context_length_400"], Match(text="row-00001"))
    async with Dispatcher(servers=[server.url], **QUICK) as d:
        job.write([row(n, model=None) for n in range(3)])
        bad = tmp_path / "bad.jsonl"
        summary = await d.run_job(job.input, job.output, errors=bad, model="fake-model", keep_state=True)
    assert summary.exit_code == 1
    assert bad.exists()
    assert job.state.exists()


@pytest.fixture
async def in_thread():
    """Runs blocking code in a thread, so that this loop can serve it."""
    return asyncio.to_thread


async def test_blocking_code_streams_and_runs_jobs(server, job, in_thread):
    def work():
        with BlockingDispatcher(servers=[server.url], **QUICK) as d:
            seen = [outcome.custom_id for outcome in d.stream(rows(30))]
            return seen, d.run_job(job.write(rows(10)).input, job.output)

    seen, summary = await in_thread(work)
    assert sorted(seen) == [request["custom_id"] for request in rows(30)]
    assert summary.exit_code == 0
    assert len(job.ids) == 10


async def test_blocking_code_that_leaves_a_stream_early_closes_what_is_in_flight(server, in_thread):
    server.inject(Hang(), Match(after=5))

    def work():
        with BlockingDispatcher(servers=[server.url]) as d:
            for _ in d.stream(rows(30)):
                break

    await in_thread(work)
    await until(lambda: server.in_flight == 0)


async def test_the_python_face_prints_nothing_while_all_is_well(server, in_thread, capfd):
    async with Dispatcher(servers=[server.url]) as d:
        await collected(d.stream(rows(5)))
    assert capfd.readouterr() == ("", "")


async def test_a_host_that_has_set_up_structlog_keeps_its_set_up(server):
    structlog.configure(processors=[structlog.testing.LogCapture()])
    (capture,) = structlog.get_config()["processors"]
    async with Dispatcher(servers=[server.url]) as d:
        await collected(d.stream(rows(5)))
    assert "server_active" in [entry["event"] for entry in capture.entries]


async def test_an_error_in_a_blocking_callers_iterator_reaches_it(server, in_thread):
    def requests():
        yield row(0)
        raise LookupError("gone")

    def work():
        with BlockingDispatcher(servers=[server.url]) as d:
            return list(d.stream(requests()))

    with pytest.raises(LookupError, match="gone"):
        await in_thread(work)


async def test_a_blocking_dispatcher_works_where_a_loop_is_running():
    """As in a notebook's cell: the servers run in a thread of their own here, this loop is blocked."""
    started, stop, urls = threading.Event(), threading.Event(), []

    async def serving():
        async with FakeServer() as server:
            urls.append(server.url)
            started.set()
            await asyncio.to_thread(stop.wait, 30)

    thread = threading.Thread(target=lambda: asyncio.run(serving()))
    thread.start()
    try:
        assert started.wait(10)
        with BlockingDispatcher(servers=urls) as d:
            assert len(list(d.stream(rows(10)))) == 10
    finally:
        stop.set()
        thread.join(10)

"""Spans of real attempts, sent to an OTLP receiver; and servers that are told of them."""

import os
import subprocess
import sys

import aiohttp
import pytest
from collector import attributes, collecting
from jobs import CHAT, MODEL, rows
from services import serving

from dispatcher.testing import Hang, Match, Respond

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def ids_of(span):
    return span.trace_id.hex(), span.span_id.hex()


def belongs_to(record):
    """The trace and the span that a server was told of (W3C Trace Context: version-trace-span-flags)."""
    _, trace_id, span_id, _ = record.traceparent.split("-")
    return trace_id, span_id


def is_sampled(record):
    return bool(int(record.traceparent.split("-")[3], 16) & 1)


@pytest.fixture
async def collector():
    async with collecting() as pair:
        yield pair


async def test_a_run_sends_a_span_for_each_attempt_and_tells_the_servers(cli, job, server, collector):
    spans, url = collector
    server.inject(Respond(500, ""), Match(text="row-00003"), times=1)
    job.write(rows(20))
    done = await cli.run(*job.argv(server), env={"DISPATCHER_TELEMETRY__OTLP_ENDPOINT": url})
    assert done.status == 0, done.err
    assert len(spans.named(verdict="success")) == 20
    (failed,) = spans.named(verdict="doubtful")
    told = attributes(failed)
    assert (told["dispatcher.row"], told["dispatcher.server"]) == (3, server.url)
    assert (told["url.path"], told["gen_ai.request.model"]) == (CHAT, MODEL)
    again = next(span for span in spans.named(verdict="success", row=3))
    assert (again.trace_id, again.parent_span_id) == (failed.trace_id, failed.span_id)
    assert attributes(again)["dispatcher.sends"] == 2
    told = {record.request_id: belongs_to(record) for record in server.requests if record.marker}
    assert {attributes(span)["dispatcher.request_id"]: ids_of(span) for span in spans.spans} == told
    assert spans.services == {"dispatcher"}


async def test_without_an_endpoint_nothing_is_traced_and_no_header_is_sent(cli, job, server, collector):
    spans, url = collector
    job.write(rows(3))
    off = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_SDK_DISABLED": "true"}
    for env in ({}, off):
        assert (await cli.run(*job.argv(server), "--restart", env=env)).status == 0
    assert spans.spans == []
    assert {record.traceparent for record in server.requests} == {""}


IMPORTED = """
import asyncio, sys
from dispatcher.app import fleet, tracing
from dispatcher.config import TelemetrySettings

async def main():
    async with tracing.open_tracer(TelemetrySettings()) as tracer:
        assert tracer is None
        print([name for name in sys.modules if name.startswith("opentelemetry")])

asyncio.run(main())
"""


def test_without_an_endpoint_opentelemetry_is_not_even_imported():
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    command = [sys.executable, "-c", IMPORTED]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_the_standard_variables_are_enough_and_are_obeyed(cli, job, server, collector):
    spans, url = collector
    job.write(rows(3))
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"{url}/",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-team=annotators",
        "OTEL_SERVICE_NAME": "labels",
        "OTEL_TRACES_SAMPLER": "always_off",
    }
    assert (await cli.run(*job.argv(server), env=env)).status == 0
    assert spans.spans == []
    assert not any(is_sampled(record) for record in server.requests if record.marker)
    env["OTEL_TRACES_SAMPLER"] = "always_on"
    assert (await cli.run(*job.argv(server), "--restart", env=env)).status == 0
    assert len(spans.spans) == 3
    assert spans.services == {"labels"}
    assert {headers["x-team"] for headers in spans.headers} == {"annotators"}


async def test_a_collector_that_is_not_there_costs_no_row(cli, job, server):
    job.write(rows(5))
    env = {"DISPATCHER_TELEMETRY__OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    done = await cli.run(*job.argv(server), "--log-format", "json", env=env)
    assert (done.status, len(job.ids)) == (0, 5)
    assert len(done.named("tracing_failed")) == 1


async def test_a_live_request_is_a_child_of_its_client_s_span(tmp_path, server, collector):
    spans, url = collector
    async with serving(tmp_path, server, telemetry={"otlp_endpoint": url}) as stage:
        await stage.until_ended(await stage.submit(rows(2)))
        body = {"model": MODEL, "messages": [{"role": "user", "content": "row-00009"}]}
        async with stage.http.post(stage.url + CHAT, json=body, headers={"traceparent": CLIENT}) as answer:
            assert answer.status == 200
            await answer.read()
    (live,) = [span for span in spans.spans if span.trace_id.hex() == CLIENT.split("-")[1]]
    assert live.parent_span_id.hex() == CLIENT.split("-")[2]
    assert "dispatcher.job" not in attributes(live)
    assert attributes(live)["dispatcher.verdict"] == "success"
    (record,) = [record for record in server.requests if record.marker == "row-00009"]
    assert belongs_to(record) == ids_of(live)
    assert len(spans.named(verdict="success")) == 3


async def test_a_client_that_leaves_leaves_no_span_open(tmp_path, serve, collector):
    spans, url = collector
    server = await serve()
    async with serving(tmp_path, server, telemetry={"otlp_endpoint": url}) as stage:
        await stage.until_ended(await stage.submit(rows(1)))
        server.inject(Hang(), Match(text="row-00009"))
        body = {"model": MODEL, "messages": [{"role": "user", "content": "row-00009"}]}
        timeout = aiohttp.ClientTimeout(total=0.3)
        with pytest.raises(TimeoutError):
            await stage.http.post(stage.url + CHAT, json=body, timeout=timeout)
    (left,) = spans.named(verdict="not_judged")
    assert "dispatcher.job" not in attributes(left)

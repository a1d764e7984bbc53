"""Spans as OpenTelemetry has them: an exporter in memory."""

import asyncio
import timeit

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from structlog.testing import capture_logs

from dispatcher.model import ErrorCode, JobId, Judgement, ServerId, Tokens, Verdict
from dispatcher.ports import Sent
from dispatcher.telemetry.tracing import OpenTelemetryTracer, SaidOnce

SENT = Sent(ServerId("http://a"), "/v1/completions", "m", "id-1", 1.25, 1, job=JobId("job"), index=7)
GOOD = Judgement(Verdict.SUCCESS, status=200, tokens=Tokens(3, 4))
CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OpenTelemetryTracer(provider)


def test_a_span_tells_where_it_went_what_it_waited_and_how_it_ended(tracer, exporter):
    tracer.begin(SENT, {}).end(GOOD)
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind, span.parent) == ("attempt", SpanKind.CLIENT, None)
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes) == {
        "url.path": "/v1/completions",
        "dispatcher.server": "http://a",
        "dispatcher.request_id": "id-1",
        "dispatcher.queue_seconds": 1.25,
        "dispatcher.sends": 1,
        "dispatcher.copy": False,
        "gen_ai.request.model": "m",
        "dispatcher.job": "job",
        "dispatcher.row": 7,
        "dispatcher.verdict": "success",
        "http.response.status_code": 200,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 4,
    }


def test_a_fault_is_an_error_by_its_code_without_a_server_s_words(tracer, exporter):
    said = Judgement(Verdict.DOUBTFUL, ErrorCode.SERVER_ERROR, "failed for row 'my secret'", status=500)
    tracer.begin(SENT, {}).end(said)
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes["error.type"], span.attributes["dispatcher.verdict"]) == (
        "server_error",
        "doubtful",
    )
    assert "secret" not in span.to_json()


def test_only_the_first_end_counts_and_an_unjudged_one_says_so(tracer, exporter):
    span = tracer.begin(SENT, {})
    span.end(None)
    span.end(GOOD)
    (kept,) = exporter.get_finished_spans()
    assert kept.attributes["dispatcher.verdict"] == "not_judged"


def test_attempts_of_a_request_are_one_trace_and_those_of_two_are_two(tracer, exporter):
    first = tracer.begin(SENT, {})
    for parent in (first.headers, {}):
        tracer.begin(SENT, parent).end(GOOD)
    first.end(GOOD)
    child, other, root = exporter.get_finished_spans()
    assert child.context.trace_id == root.context.trace_id != other.context.trace_id
    assert child.parent.span_id == root.context.span_id


def test_the_span_of_a_client_is_the_parent_with_its_state(tracer, exporter):
    span = tracer.begin(SENT, {"traceparent": CLIENT, "tracestate": "vendor=1"})
    span.end(GOOD)
    (kept,) = exporter.get_finished_spans()
    assert f"{kept.context.trace_id:032x}" == CLIENT.split("-")[1]
    assert f"{kept.parent.span_id:016x}" == CLIENT.split("-")[2]
    assert span.headers["tracestate"] == "vendor=1"


@pytest.mark.parametrize("parent", [{"traceparent": "nonsense"}, {"tracestate": "a=1"}])
def test_a_parent_that_is_none_begins_a_trace_of_its_own(tracer, exporter, parent):
    tracer.begin(SENT, parent).end(GOOD)
    assert exporter.get_finished_spans()[0].parent is None


async def test_a_server_is_told_of_the_attempt_of_its_own_task(tracer):
    assert tracer.headers() == {}

    async def attempt():
        span = tracer.begin(SENT, {})
        await asyncio.sleep(0)
        return span.headers["traceparent"], tracer.headers()["traceparent"]

    pairs = await asyncio.gather(*(attempt() for _ in range(3)))
    assert len({own for own, _ in pairs}) == 3
    assert all(own == told for own, told in pairs)
    assert tracer.headers() == {}


def test_a_span_is_cheap_enough_for_every_attempt(tracer):
    best_s = min(timeit.repeat(lambda: tracer.begin(SENT, {}).end(GOOD), number=200, repeat=5)) / 200
    assert best_s < 1e-3  # about 60 us; what this catches is an export in the caller's time


class Scripted(SpanExporter):
    """An exporter that does as it is told."""

    def __init__(self, *results):
        self.results = list(results)
        self.closed = False

    def export(self, _spans):
        return self.results.pop(0)

    def shutdown(self):
        self.closed = True


def test_an_exporter_that_fails_is_said_when_it_begins_and_when_it_ends():
    good, bad = SpanExportResult.SUCCESS, SpanExportResult.FAILURE
    script = [good, bad, bad, bad, good, good, bad]
    exporter = SaidOnce(Scripted(*script))
    with capture_logs() as logs:
        assert [exporter.export([]) for _ in script] == script
    assert [entry["event"] for entry in logs] == ["tracing_failed", "tracing_again", "tracing_failed"]
    exporter.shutdown()
    assert exporter._exporter.closed

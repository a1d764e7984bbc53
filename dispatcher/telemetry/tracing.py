"""Attempts as OpenTelemetry spans. Imported only where tracing is on: OpenTelemetry is an extra."""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dispatcher.model import Judgement, Verdict
from dispatcher.ports import Sent

NAME = "attempt"
"""Of every span: what it was is in its attributes."""
NOT_JUDGED = "not_judged"
"""The verdict of an attempt that was closed by us: its other attempt was first, or we stop."""

_PROPAGATOR = TraceContextTextMapPropagator()
_NONE: Mapping[str, str] = MappingProxyType({})


class OpenTelemetryTracer:
    """`ports.Tracer` on a tracer provider. Attributes follow OpenTelemetry's conventions where it has any.

    The attempts of one request are one trace: the first is the parent of the others, and of what its server
    makes of it. No attribute holds anything that a request or a server says.
    """

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("dispatcher")
        self._carried: ContextVar[Mapping[str, str]] = ContextVar("carried", default=_NONE)

    def begin(self, sent: Sent, parent: Mapping[str, str]) -> "AttemptSpan":
        """See `ports.Tracer`."""
        context = _PROPAGATOR.extract(parent, Context()) if parent else Context()
        span = self._tracer.start_span(NAME, context, trace.SpanKind.CLIENT, attributes=_attributes(sent))
        headers: dict[str, str] = {}
        _PROPAGATOR.inject(headers, trace.set_span_in_context(span, Context()))
        self._carried.set(headers)
        return AttemptSpan(span, headers)

    def headers(self) -> Mapping[str, str]:
        """What the server is told of the attempt that the running task sends: `traceparent`."""
        return self._carried.get()


class AttemptSpan:
    """`ports.Span` of OpenTelemetry."""

    __slots__ = ("_span", "headers")

    def __init__(self, span: trace.Span, headers: Mapping[str, str]) -> None:
        self._span: trace.Span | None = span
        self.headers = headers

    def end(self, judgement: Judgement | None) -> None:
        """See `ports.Span`."""
        span, self._span = self._span, None
        if span is None:
            return
        if judgement is None:
            span.set_attribute("dispatcher.verdict", NOT_JUDGED)
        else:
            _describe(span, judgement)
        span.end()


class SaidOnce(SpanExporter):
    """An exporter whose failures are logged when they begin and when they end, not every few seconds."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._failing = False
        self._log = structlog.get_logger("dispatcher.tracing")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans, in the processor's thread. What fails is dropped."""
        result = self._exporter.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            self._log.warning("tracing_failed", spans=len(spans))
        elif self._failing and not failed:
            self._log.info("tracing_again")
        self._failing = failed
        return result

    def shutdown(self) -> None:
        """Send nothing more, from any thread: an export that waits to be tried again fails at once."""
        self._exporter.shutdown()


def _attributes(sent: Sent) -> dict[str, str | int | float | bool]:
    attributes: dict[str, str | int | float | bool] = {
        "url.path": sent.route,
        "dispatcher.server": sent.server,
        "dispatcher.request_id": sent.request_id,
        "dispatcher.queue_seconds": round(sent.queue_s, 6),
        "dispatcher.sends": sent.sends,
        "dispatcher.copy": sent.is_copy,
    }
    if sent.model is not None:
        attributes["gen_ai.request.model"] = sent.model
    if sent.job is not None and sent.index is not None:
        attributes |= {"dispatcher.job": sent.job, "dispatcher.row": sent.index}
    return attributes


def _describe(span: trace.Span, judgement: Judgement) -> None:
    span.set_attribute("dispatcher.verdict", judgement.verdict.value)
    if judgement.status is not None:
        span.set_attribute("http.response.status_code", judgement.status)
    if judgement.verdict is Verdict.SUCCESS:
        span.set_attribute("gen_ai.usage.input_tokens", judgement.tokens.prompt)
        span.set_attribute("gen_ai.usage.output_tokens", judgement.tokens.completion)
    else:
        span.set_attribute("error.type", (judgement.code or judgement.verdict).value)
        span.set_status(trace.StatusCode.ERROR, judgement.plainly)

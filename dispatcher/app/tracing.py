"""Tracing, where it is asked for: the exporter that sends spans away, for as long as the context is open."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import structlog

from dispatcher.app.extras import require_tracing
from dispatcher.config import TelemetrySettings

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource

    from dispatcher.telemetry.tracing import OpenTelemetryTracer

TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
ALL_SIGNALS = "OTEL_EXPORTER_OTLP_ENDPOINT"
SIGNAL_PATH = "/v1/traces"
"""What is added to an endpoint of all signals (OpenTelemetry's OTLP exporter configuration)."""
EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
FLUSH_S = 5.0
"""How long the end waits for spans to be sent: a collector that is away would take 10 s for 512 of them."""


def traces_url(settings: TelemetrySettings, environ: Mapping[str, str]) -> str | None:
    """Where spans are sent: by the setting, or else OpenTelemetry's own variables; None for nowhere.

    `OTEL_SDK_DISABLED=true` and `OTEL_TRACES_EXPORTER=none` turn tracing off, whatever else is set.
    """
    disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if disabled or environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return None
    if settings.otlp_endpoint is not None:
        return settings.otlp_endpoint + SIGNAL_PATH
    if own := environ.get(TRACES, "").strip():
        return own
    shared = environ.get(ALL_SIGNALS, "").strip()
    return shared.rstrip("/") + SIGNAL_PATH if shared else None


@asynccontextmanager
async def open_tracer(settings: TelemetrySettings) -> "AsyncIterator[OpenTelemetryTracer | None]":
    """A tracer, or None where nothing says where spans are to go.

    Sampler, headers, time-outs, batches and resource are OpenTelemetry's own variables. What cannot be sent
    is dropped, and never holds a request up. The end waits for what is left, but not for long: `FLUSH_S`, and
    what a connection that is being tried then may take (`OTEL_EXPORTER_OTLP_TIMEOUT`, 10 s).

    Raises ConfigError where the setting asks for what is not installed; where only the environment does,
    as an operator's injected variables would, the log says so.
    """
    url = traces_url(settings, os.environ)
    if url is None or not require_tracing(demanded=settings.otlp_endpoint is not None):
        yield None
        return
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  # an extra
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    from dispatcher.telemetry.tracing import OpenTelemetryTracer, SaidOnce  # noqa: PLC0415  # an extra

    exporter = SaidOnce(_exporter(url))
    provider = TracerProvider(resource=_resource())
    provider.add_span_processor(BatchSpanProcessor(exporter))
    log = structlog.get_logger("dispatcher.tracing")
    log.info("tracing", endpoint=url)
    with _unsaid():
        try:
            yield OpenTelemetryTracer(provider)
        finally:
            ending = asyncio.ensure_future(asyncio.to_thread(provider.shutdown))
            sent, _ = await asyncio.wait({ending}, timeout=FLUSH_S)
            if not sent:
                log.warning("spans_dropped", after_s=FLUSH_S)
                exporter.shutdown()
            await ending


def _exporter(url: str) -> "OTLPSpanExporter":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415  # an extra
        OTLPSpanExporter,
    )

    return OTLPSpanExporter(endpoint=url)


def _resource() -> "Resource":
    """What OpenTelemetry's variables say of this process; called `dispatcher` where they do not name it."""
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  # an extra

    resource = Resource.create()
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "dispatcher"}))
    return resource


@contextmanager
def _unsaid() -> Iterator[None]:
    """The exporter's own log lines are left out: four in ten seconds, for as long as a collector is away."""
    logger = logging.getLogger(EXPORTER)
    logger.addFilter(_nothing)
    try:
        yield
    finally:
        logger.removeFilter(_nothing)


def _nothing(_record: logging.LogRecord) -> bool:
    return False

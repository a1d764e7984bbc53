"""A small OpenTelemetry collector: OTLP over HTTP, in this process, on loopback."""

from contextlib import asynccontextmanager

from aiohttp import web
from loopback import served
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Collector:
    """Keeps the spans that come, and the headers they came with."""

    def __init__(self):
        self.spans = []
        self.services = set()
        self.headers = []

    async def take(self, request):
        told = ExportTraceServiceRequest.FromString(await request.read())
        self.headers.append(request.headers)
        for resource in told.resource_spans:
            self.services.add(attributes(resource.resource)["service.name"])
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")

    def named(self, **wanted):
        """Spans with these attributes of ours: `named(verdict="success")`."""
        keys = {f"dispatcher.{name}": value for name, value in wanted.items()}
        return [span for span in self.spans if keys.items() <= attributes(span).items()]


def attributes(told):
    """The attributes of a span or a resource as a dict."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in told.attributes}


@asynccontextmanager
async def collecting():
    """A collector and its URL."""
    collector, application = Collector(), web.Application()
    application.router.add_post("/v1/traces", collector.take)
    async with served(application) as url:
        yield collector, url

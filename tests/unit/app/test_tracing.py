"""Where spans go, and what is said where they cannot."""

import asyncio
import logging
import sys

import pytest
from structlog.testing import capture_logs

from dispatcher.app import tracing
from dispatcher.app.extras import require_tracing
from dispatcher.app.tracing import open_tracer, traces_url
from dispatcher.config import TelemetrySettings, load_config
from dispatcher.errors import ConfigError
from dispatcher.model import ServerId
from dispatcher.ports import Sent

NOWHERE = TelemetrySettings()
SOMEWHERE = TelemetrySettings(otlp_endpoint="http://collector:4318/")


@pytest.mark.parametrize(
    ("settings", "environ", "url"),
    [
        (NOWHERE, {}, None),
        (SOMEWHERE, {}, "http://collector:4318/v1/traces"),
        (NOWHERE, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1/base/"}, "http://c:1/base/v1/traces"),
        (NOWHERE, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:1/as/is"}, "http://c:1/as/is"),
        (SOMEWHERE, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1"}, "http://collector:4318/v1/traces"),
        (SOMEWHERE, {"OTEL_SDK_DISABLED": "TRUE"}, None),
        (SOMEWHERE, {"OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_where_spans_go(settings, environ, url):
    assert traces_url(settings, environ) == url


def test_an_endpoint_that_is_no_url_is_refused_with_its_setting():
    with pytest.raises(ConfigError, match=r"telemetry\.otlp_endpoint"):
        load_config(None, {"telemetry": {"otlp_endpoint": "ftp://collector"}}, {})


async def test_a_missing_extra_is_named_where_it_was_asked_for_and_only_said_where_the_environment_asks(
    monkeypatch,
):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'dispatcher\[otel\]'"):
        async with open_tracer(SOMEWHERE):
            pass
    with capture_logs() as logs:
        assert not require_tracing(demanded=False)
    assert [entry["event"] for entry in logs] == ["tracing_off"]


async def test_a_collector_that_is_away_holds_the_end_up_for_a_bounded_time_and_is_said_once(
    monkeypatch, caplog
):
    monkeypatch.setattr(tracing, "FLUSH_S", 0.05)
    nobody = TelemetrySettings(otlp_endpoint="http://127.0.0.1:9")
    loop = asyncio.get_running_loop()
    with capture_logs() as logs:
        async with open_tracer(nobody) as tracer:
            for number in range(600):  # more than the processor exports at once
                tracer.begin(Sent(ServerId("a"), "/v1/completions", "m", f"{number}", 0.0, 1), {}).end(None)
            began = loop.time()
    assert loop.time() - began < 8, "OpenTelemetry alone would try for 10 s, twice"
    events = [entry["event"] for entry in logs]
    assert (events[0], events.count("spans_dropped"), events.count("tracing_failed")) == ("tracing", 1, 1)
    assert caplog.records == [], "the exporter's own words are left out"
    assert logging.getLogger(tracing.EXPORTER).filters == []

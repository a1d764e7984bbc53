"""The control plane: what a server says of itself, on connections that are not the data plane's."""

import asyncio
import ssl
from types import TracebackType
from typing import Final, Self

import httpx2

from dispatcher.model import (
    Answer,
    Break,
    BreakKind,
    CanaryReport,
    Ending,
    ProbeReport,
    ServerSpec,
    Telemetry,
)
from dispatcher.vllm.canary import CANARIES, report_on, report_on_no_route
from dispatcher.vllm.headers import retry_after_s, server_headers
from dispatcher.vllm.pages import health_of, models_of, sleeping_of, version_of
from dispatcher.vllm.probe_breaks import probe_break_of
from dispatcher.vllm.telemetry import read_telemetry

PAGE_BYTES_MAX: Final = 32 * 2**20
"""The metrics page of a large deployment has a few MiB."""

_KEEP_ALIVE_S: Final = 4.0
"""A little less than vLLM keeps an idle connection open (5 s)."""


class HttpProber:
    """`ports.Prober` over httpx2. An async context manager; use it inside one event loop.

    Every exchange has `probe_timeout_s` in all, of which connecting may take `connect_timeout_s`. The
    environment's proxies are ignored, redirects are not followed, and nothing is retried.
    """

    def __init__(self, *, probe_timeout_s: float = 10.0, connect_timeout_s: float = 3.0) -> None:
        self._probe_timeout_s = probe_timeout_s
        self._connect_timeout_s = connect_timeout_s

    async def __aenter__(self) -> Self:
        self._client = httpx2.AsyncClient(
            verify=ssl.create_default_context(),  # as the data plane: the system's, or SSL_CERT_FILE's
            trust_env=False,
            follow_redirects=False,
            timeout=httpx2.Timeout(None, connect=self._connect_timeout_s),
            limits=httpx2.Limits(keepalive_expiry=_KEEP_ALIVE_S),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def probe(self, server: ServerSpec) -> ProbeReport:
        """Ask `/health` alone."""
        return ProbeReport(*health_of(await self._exchange(server, "GET", "/health")))

    async def inspect(self, server: ServerSpec) -> ProbeReport:
        """Ask for all that a server says of itself, at once. What it does not say is None."""
        health, models, sleeping, version, telemetry = await asyncio.gather(
            self._exchange(server, "GET", "/health"),
            self._exchange(server, "GET", "/v1/models"),
            self._exchange(server, "GET", "/is_sleeping"),
            self._exchange(server, "GET", "/version"),
            self.scrape(server),
        )
        return ProbeReport(
            *health_of(health),
            models=models_of(models),
            sleeping=sleeping_of(sleeping),
            version=version_of(version),
            started_at=telemetry.started_at if telemetry else None,
            telemetry=telemetry,
        )

    async def canary(self, server: ServerSpec, model: str | None) -> CanaryReport:
        """Ask the engine for one token: the one thing that a frozen engine cannot give.

        A server that has none of the routes it could be asked by counts as well: it has answered. A proxy's
        pages do not.
        """
        endings = []
        for canary in CANARIES:
            request = canary.request(model)
            ending = await self._exchange(server, "POST", request.url, request.body)
            report = report_on(ending, request)
            if report is not None:
                return report
            endings.append(ending)
        return report_on_no_route(endings)

    async def scrape(self, server: ServerSpec) -> Telemetry | None:
        """Read `/metrics`; None where there is none, or it cannot be read."""
        match await self._exchange(server, "GET", "/metrics"):
            case Answer(status=200, body=body):
                return read_telemetry(body.decode("utf-8", "replace"))
            case _:
                return None

    async def _exchange(
        self, server: ServerSpec, method: str, path: str, body: bytes | None = None
    ) -> Ending:
        headers = {**server_headers(server), "Content-Type": "application/json"}
        url = server.base_url + path
        try:
            async with (
                asyncio.timeout(self._probe_timeout_s),
                self._client.stream(method, url, content=body, headers=headers) as response,
            ):
                return await _read_answer(response)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            return probe_break_of(error)


async def _read_answer(response: httpx2.Response) -> Ending:
    page = bytearray()
    async for chunk in response.aiter_bytes():
        page += chunk
        if len(page) > PAGE_BYTES_MAX:
            return Break(BreakKind.PROTOCOL, f"the page is larger than {PAGE_BYTES_MAX} bytes")
    headers = response.headers
    return Answer(
        response.status_code,
        bytes(page),
        headers.get("Content-Type", ""),
        retry_after_s=retry_after_s(headers.get("Retry-After"), headers.get("Date")),
    )

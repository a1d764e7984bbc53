"""The control plane: what a server says of itself, on connections that are not the data plane's."""

import asyncio
import ssl
import time
from types import TracebackType
from typing import Final, Self

import httpx2

from dispatcher.config import KnownAnswer
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
from dispatcher.telemetry.absences import Absences
from dispatcher.vllm.canary import CANARIES, Canary, report_on, report_on_no_route
from dispatcher.vllm.headers import retry_after_s, server_headers
from dispatcher.vllm.known_answer import question_of, report_on_answer, report_on_refusal
from dispatcher.vllm.pages import context_tokens_of, health_of, models_of, sleeping_of, version_of
from dispatcher.vllm.probe_breaks import probe_break_of
from dispatcher.vllm.telemetry import read_telemetry

PAGE_BYTES_MAX: Final = 32 * 2**20
"""The metrics page of a large deployment has a few MiB."""


class HttpProber:
    """`ports.Prober` over httpx2. An async context manager; use it inside one event loop.

    Every exchange has a connection of its own: one that the server was just about to close says nothing, and
    an old one hides that nobody listens any more. It has `probe_timeout_s` in all, of which connecting may
    take `connect_timeout_s`. The environment's proxies are ignored, redirects are not followed, and nothing
    is retried. What runs out in one of the `absences` was not asked.
    """

    def __init__(
        self,
        *,
        probe_timeout_s: float = 10.0,
        connect_timeout_s: float = 3.0,
        absences: Absences | None = None,
    ) -> None:
        self._absences = absences or Absences(time.monotonic)
        self._probe_timeout_s = probe_timeout_s
        self._connect_timeout_s = connect_timeout_s

    async def __aenter__(self) -> Self:
        self._client = httpx2.AsyncClient(
            verify=ssl.create_default_context(),  # as the data plane: the system's, or SSL_CERT_FILE's
            trust_env=False,
            follow_redirects=False,
            timeout=httpx2.Timeout(None, connect=self._connect_timeout_s),
            limits=httpx2.Limits(max_keepalive_connections=0),
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
            context_tokens=context_tokens_of(models),
            sleeping=sleeping_of(sleeping),
            version=version_of(version),
            started_at=telemetry.started_at if telemetry else None,
            telemetry=telemetry,
        )

    async def page(self, server: ServerSpec, path: str) -> Ending:
        """Get one page, `/version` say, and return how that ended; `pages.py` reads them."""
        return await self._exchange(server, "GET", path)

    async def canary(
        self, server: ServerSpec, model: str | None, known: KnownAnswer | None = None
    ) -> CanaryReport:
        """Ask the engine for one token, the one thing that a frozen engine cannot give; or a known answer.

        A server that has none of the routes it could be asked by counts as well: it has answered. A proxy's
        pages do not. One that takes no questions gets the one-token canary, and passes if it writes no text.
        """
        if known is None:
            return (await self._one_token(server, model))[0]
        question = question_of(known, model)
        ending = await self._exchange(server, "POST", question.url, question.body)
        report = report_on_answer(ending, question, known)
        if report is not None:
            return report
        report, asked = await self._one_token(server, model)
        writes = report.fault is None and asked is not None and asked.generates
        return report_on_refusal(ending, question) if writes else report

    async def _one_token(self, server: ServerSpec, model: str | None) -> tuple[CanaryReport, Canary | None]:
        """Ask for one token, and say by which route; None where the server has none of them."""
        endings = []
        for canary in CANARIES:
            request = canary.request(model)
            ending = await self._exchange(server, "POST", request.url, request.body)
            report = report_on(ending, request)
            if report is not None:
                return report, canary
            endings.append(ending)
        return report_on_no_route(endings), None

    async def scrape(self, server: ServerSpec, timeout_s: float | None = None) -> Telemetry | None:
        """Read `/metrics`; None where there is none, or it cannot be read in time (None: a probe's)."""
        match await self._exchange(server, "GET", "/metrics", timeout_s=timeout_s):
            case Answer(status=200, body=body):
                return read_telemetry(body.decode("utf-8", "replace"))
            case _:
                return None

    async def _exchange(
        self,
        server: ServerSpec,
        method: str,
        path: str,
        body: bytes | None = None,
        timeout_s: float | None = None,
    ) -> Ending:
        headers = {**server_headers(server), "Content-Type": "application/json"}
        url = server.base_url + path
        extensions = {} if server.host_name is None else {"sni_hostname": server.host_name}
        try:
            async with (
                asyncio.timeout(self._probe_timeout_s if timeout_s is None else timeout_s),
                self._client.stream(
                    method, url, content=body, headers=headers, extensions=extensions
                ) as response,
            ):
                return await _read_answer(response)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, MemoryError) as error:
            return probe_break_of(error, away=self._absences.just_over())


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

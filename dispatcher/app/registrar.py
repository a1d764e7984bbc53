"""What runs beside a server and keeps it registered, for as long as it answers."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import structlog

from dispatcher.config.urls import base_url
from dispatcher.errors import ConfigError, DispatcherError, Fault
from dispatcher.ports import Clock

LOOK_EVERY_S = 2.0
"""Between two tries, while the server or the service does not answer."""
TIMEOUT_S = 10.0
FAREWELL_S = 5.0
"""How long the service may take to hear that the server leaves."""
RENEWALS = 3
"""In the time that a registration lasts, so that one or two may fail."""
TTL_MAX_S = 3600.0
HOPELESS = (400, 401, 403, 404)
"""What stays as it is until somebody changes the token, the URL or the service's configuration."""


@dataclass(frozen=True, slots=True)
class Registrant:
    """A server and the service that it is registered with. The Registrar takes one that was checked."""

    service: str
    """The service's URL."""
    server: str
    """The server's URL, as the service is to reach it."""
    token: str = field(repr=False)
    api_key: str | None = field(default=None, repr=False)
    """What the server asks for."""
    limit: int | None = None
    health: str | None = None
    """Where it is asked for its health from here; None: at `server`."""


def check_registrant(registrant: Registrant) -> Registrant:
    """The same with its URLs in one spelling: `me:8000` is http. Raises ConfigError with every fault."""
    faults: list[Fault] = []
    urls = {"--url": registrant.service, "--server": registrant.server, "--health": registrant.health}
    plain = {option: _plain(option, url, faults) for option, url in urls.items() if url is not None}
    if faults:
        raise ConfigError(tuple(faults))
    return replace(registrant, service=plain["--url"], server=plain["--server"], health=plain.get("--health"))


def _plain(option: str, url: str, faults: list[Fault]) -> str:
    try:
        return base_url(url)
    except ValueError as error:
        faults.append(Fault(option, str(error)))
        return url


class Registrar:
    """Registers one server, renews that, and ends it. `run` it once; `request_stop` ends it."""

    def __init__(self, registrant: Registrant, client: httpx2.AsyncClient, clock: Clock) -> None:
        self._registrant = registrant
        self._client = client
        self._clock = clock
        self._stopping = asyncio.Event()
        self._registered = False
        self._log = structlog.get_logger("dispatcher.register")

    def request_stop(self) -> bool:
        """Deregister and end. False from the second time on: the service need not be there."""
        first = not self._stopping.is_set()
        self._stopping.set()
        return first

    async def run(self) -> None:
        """Keep the server registered until stopped. Raises ConfigError where the service never will."""
        turning = asyncio.create_task(self._turn(), name="register")
        stopping = asyncio.create_task(self._stopping.wait(), name="stop")
        try:
            await asyncio.wait({turning, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if turning.done():
                await turning
        finally:
            turning.cancel()
            stopping.cancel()
            await asyncio.gather(turning, stopping, return_exceptions=True)
            await self._deregister()

    async def _turn(self) -> None:
        while True:
            await self._clock.sleep(await self._step())

    async def _step(self) -> float:
        """Look at the server and tell the service: how long until the next look."""
        if not await self._is_well():
            await self._deregister()
            return LOOK_EVERY_S
        ttl_s = await self._register()
        return LOOK_EVERY_S if ttl_s is None else ttl_s / RENEWALS

    async def _is_well(self) -> bool:
        """Whether it serves. One that is only slow to say so goes on: the service watches it itself."""
        try:
            answer = await self._client.get(f"{self._registrant.health or self._registrant.server}/health")
        except httpx2.ReadTimeout:
            return self._registered
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            self._log.info("server_not_ready", server=self._registrant.server, reason=type(error).__name__)
            return False
        if not answer.is_success:
            self._log.info("server_not_ready", server=self._registrant.server, status=answer.status_code)
        return answer.is_success

    async def _register(self) -> float | None:
        """Register or renew: for how many seconds. None where the service did not do it now.

        Raises ConfigError where it never will.
        """
        registrant = self._registrant
        body = {"url": registrant.server, "api_key": registrant.api_key, "limit": registrant.limit}
        try:
            answer = await self._tell("/servers/register", body)
            ttl_s = float(answer["ttl_s"])
        except (httpx2.HTTPError, _NotNowError, KeyError, TypeError, ValueError) as error:
            reason = str(error) or type(error).__name__
            self._log.warning("registration_failed", service=registrant.service, reason=reason)
            return None
        if not self._registered:
            self._log.info("registered", service=registrant.service, server=registrant.server, ttl_s=ttl_s)
        self._registered = True
        return min(max(ttl_s, 1.0), TTL_MAX_S)

    async def _deregister(self) -> None:
        if not self._registered:
            return
        self._registered = False
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._tell("/servers/deregister", {"url": self._registrant.server})
        except (httpx2.HTTPError, TimeoutError, DispatcherError, _NotNowError, ValueError) as error:
            self._log.warning("deregistration_failed", reason=str(error) or type(error).__name__)
        else:
            self._log.info("deregistered", service=self._registrant.service, server=self._registrant.server)

    async def _tell(self, path: str, body: Mapping[str, object]) -> Any:
        url = f"{self._registrant.service}{path}"
        headers = {"Authorization": f"Bearer {self._registrant.token}"}
        answer = await self._client.post(url, json=body, headers=headers)
        if answer.is_success:
            return answer.json()
        message = f"{answer.status_code}: {_message_of(answer)}"
        if answer.status_code in HOPELESS:
            raise ConfigError((Fault(self._registrant.service, message),))
        raise _NotNowError(message)


class _NotNowError(Exception):
    """The service refuses for now."""


def _message_of(answer: httpx2.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "no reason given"

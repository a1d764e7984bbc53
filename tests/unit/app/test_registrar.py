"""The registrar in virtual time, against a server and a service that are scripted."""

import asyncio
import json

import httpx2
import pytest

from dispatcher.app.registrar import Registrant, Registrar, check_registrant
from dispatcher.errors import ConfigError

REGISTRANT = check_registrant(
    Registrant("http://service:8080/v1", "me:8000/v1/", "tok", api_key="k", limit=4)
)


class World:
    """What the server and the service answer; what they were asked, and when."""

    def __init__(self, health=(), service=()):
        self.time, self.asked = 0.0, []
        self.health, self.service = list(health), list(service)
        self.registrar = None

    def now(self):
        return self.time

    async def sleep(self, seconds):
        """Time goes on until everything scripted is used up; then the user has enough."""
        self.time += seconds
        if not self.health:
            self.registrar.request_stop()
            await asyncio.sleep(3600)

    async def answer(self, request):
        if request.url.path == "/health":
            return self._said(self.health)
        body = json.loads(request.content)
        self.asked.append((self.time, request.url.path, body))
        assert request.headers["Authorization"] == "Bearer tok"
        if request.url.path.endswith("/deregister") or not self.service:
            return httpx2.Response(200, json={"ttl_s": 30.0})
        return self._said(self.service)

    @staticmethod
    def _said(script):
        said = script.pop(0)
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, httpx2.Response) else httpx2.Response(said)


async def told(**script):
    """When the service was told what."""
    world = World(**script)
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(world.answer)) as client:
        world.registrar = Registrar(REGISTRANT, client, world)
        async with asyncio.timeout(5):
            await world.registrar.run()
    return [(at, path.removeprefix("/servers/")) for at, path, _ in world.asked]


async def test_a_server_is_registered_once_it_is_well_renewed_every_third_of_its_time_and_deregistered():
    refused = httpx2.ConnectError("refused")
    assert await told(health=[refused, 503, 200, 200, 200]) == [
        (4.0, "register"),
        (14.0, "register"),
        (24.0, "register"),
        (34.0, "deregister"),
    ]


async def test_what_the_service_is_told():
    world = World(health=[200])
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(world.answer)) as client:
        world.registrar = Registrar(REGISTRANT, client, world)
        await world.registrar.run()
    assert world.asked[0][2] == {"url": "http://me:8000", "api_key": "k", "limit": 4}


async def test_a_dead_server_is_deregistered_at_once_and_a_busy_one_is_not():
    slow, reset = httpx2.ReadTimeout("slow"), httpx2.ReadError("reset")
    assert await told(health=[200, slow, reset, 200]) == [
        (0.0, "register"),
        (10.0, "register"),
        (20.0, "deregister"),
        (22.0, "register"),
        (32.0, "deregister"),
    ]


async def test_a_server_that_was_never_well_is_not_registered_for_being_slow():
    assert await told(health=[httpx2.ReadTimeout("slow")]) == []


async def test_a_service_that_fails_is_told_again_soon():
    broken = httpx2.Response(200, text="<html>")
    answers = [httpx2.ConnectError("refused"), 503, 422, 429, broken]
    assert await told(health=[200] * 6, service=answers) == [
        *((2.0 * turn, "register") for turn in range(6)),
        (20.0, "deregister"),
    ]


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_refusal_that_will_stay_ends_it_with_the_reason(status):
    refusal = httpx2.Response(status, json={"error": {"message": "not you"}})
    with pytest.raises(ConfigError, match=f"^http://service:8080: {status}: not you$"):
        await told(health=[200, 200], service=[refusal])


def test_urls_that_cannot_be_are_all_named_before_anything_is_asked():
    with pytest.raises(ConfigError) as caught:
        check_registrant(Registrant("service", "ftp://me", "tok", health="http://[x"))
    assert [fault.where for fault in caught.value.faults] == ["--url", "--server", "--health"]


def test_a_registrant_does_not_show_its_secrets():
    assert "tok" not in repr(REGISTRANT).replace("token", "")
    assert "'k'" not in repr(REGISTRANT)

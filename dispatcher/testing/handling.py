"""What a fake server does with a request: meet its faults, be answered, take its time."""

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import assert_never

from aiohttp import web

from dispatcher.testing import connections, presets, refusals
from dispatcher.testing.answers import ANSWERS
from dispatcher.testing.control import PREFIX, control
from dispatcher.testing.faults import (
    Arrival,
    Die,
    Drop,
    Ending,
    FaultScript,
    Freeze,
    Hang,
    Refuse,
    Reset,
    Respond,
    Spoil,
    Spoilage,
    Strike,
)
from dispatcher.testing.flights import EngineDeadError, Flight
from dispatcher.testing.lifecycle import Lifecycle
from dispatcher.testing.process import Process
from dispatcher.testing.replies import EVENT_STREAM, Asked, Reply
from dispatcher.testing.spoiling import spoil

_OVERLOAD = frozenset({429, 503})
_STATEMENTS: Mapping[tuple[str, str], Callable[[Process], web.Response]] = MappingProxyType(
    {
        ("GET", "/health"): Process.health,
        ("GET", "/v1/models"): Process.models,
        ("GET", "/version"): Process.version,
        ("GET", "/load"): Process.load,
        ("GET", "/metrics"): Process.metrics,
    }
)
_DEV_STATEMENTS: Mapping[tuple[str, str], Callable[[Process], web.Response]] = MappingProxyType(
    {
        ("GET", "/is_sleeping"): Process.is_sleeping,
        ("POST", "/sleep"): Process.sleep,
        ("POST", "/wake_up"): Process.wake_up,
    }
)
_ROUTES = frozenset({*ANSWERS, *(path for _, path in _STATEMENTS)})


class RequestHandler:
    """Handles every request of one fake server."""

    def __init__(self, life: Lifecycle, script: FaultScript) -> None:
        self._life = life
        self._script = script

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, or end its connection (then the handler is cancelled)."""
        try:
            response = await self._respond(request)
        except refusals.RefusalError as exc:
            response = web.Response(status=exc.status, body=exc.body, content_type=refusals.JSON)
        if not self._life.listener.listening:
            response.force_close()
        return response

    async def _respond(self, request: web.BaseRequest) -> web.Response:
        raw = await request.read()
        reused = self._life.connections.note_use(request)
        if request.path.startswith(PREFIX):
            return control(self._life, self._script, request.method, request.path, raw)
        arrival = Arrival(request.path, raw, reused, len(self._life.flights))
        if request.path in ANSWERS and request.method == "POST":
            return await self._posted(request, arrival)
        return await self._stated(request, arrival)

    async def _stated(self, request: web.BaseRequest, arrival: Arrival) -> web.Response:
        """What the server says of itself. It can meet faults too, but not die of another's."""
        delay_s, fault = self._script.decide(arrival)
        flight = Flight(0, request)
        await flight.pause(delay_s)
        instead = await self._meet(flight, fault)
        if instead is not None:
            return instead
        self._authorize(request)
        asked = (request.method, request.path)
        say = _STATEMENTS.get(asked) or (_DEV_STATEMENTS.get(asked) if self._life.settings.dev_mode else None)
        if say is None:
            raise refusals.method_not_allowed() if request.path in _ROUTES else refusals.not_found()
        return say(self._life.process)

    async def _posted(self, request: web.BaseRequest, arrival: Arrival) -> web.Response:
        process = self._life.process
        with self._life.flights.open(request, arrival) as flight:
            try:
                return await self._fly(flight, arrival, process)
            except EngineDeadError as exc:
                return await _last_answer(request, exc.die)
            except asyncio.CancelledError:
                process.counters.finished["abort"] += not flight.severed
                raise
            finally:
                process.pace.abort(flight)

    async def _fly(self, flight: Flight, arrival: Arrival, process: Process) -> web.Response:
        delay_s, fault = self._script.decide(arrival)
        if process.death is not None:
            flight.doom(process.death)
        await flight.pause(delay_s)
        instead = await self._meet(flight, fault)
        if instead is not None:
            return instead
        self._authorize(flight.request)
        reply = ANSWERS[arrival.route](self._asked(flight.request, arrival))
        process.pace.start(flight, reply.prompt_tokens, reply.output_tokens)
        await flight.ended
        process.count(reply)
        return await _delivered(flight, reply, fault)

    async def _meet(self, flight: Flight, fault: Strike | None) -> web.Response | None:
        """Suffer a fault: what it answers instead, or None where the request goes on."""
        match fault:
            case None | Spoil():
                return None
            case Respond():
                self._life.process.counters.rejections += fault.status in _OVERLOAD
                return _instead(fault)
            case Reset():
                flight.severed = True
                await connections.reset(flight.request)
            case Drop():
                flight.severed = True
                await connections.drop(flight.request)
            case Hang():
                await flight.ended
            case _:
                self._befall(fault)
                await flight.pause(0)
        return None

    def _befall(self, fault: Die | Refuse | Freeze) -> None:
        """What happens to the whole server."""
        match fault:
            case Die():
                self._life.begin_death(fault)
            case Refuse():
                self._life.begin_refusal(fault.seconds)
            case Freeze():
                self._life.freeze(fault.seconds)

    def _authorize(self, request: web.BaseRequest) -> None:
        key = self._life.settings.api_key
        guarded = key is not None and request.path.startswith("/v1/")
        if guarded and request.headers.get("Authorization") != f"Bearer {key}":
            raise refusals.unauthorized()

    def _asked(self, request: web.BaseRequest, arrival: Arrival) -> Asked:
        request_id = request.headers.get("X-Request-Id") or uuid.uuid4().hex
        return Asked(self._life.settings, arrival.body, request_id, int(time.time()))


async def _delivered(flight: Flight, reply: Reply, fault: Strike | None) -> web.Response:
    match fault:
        case Spoil(how=Spoilage.CUT):
            flight.severed = True
            return await connections.send_half(flight.request, reply.body, reply.content_type)
        case Spoil(how=how):
            return _whole(spoil(how, reply))
        case _:
            return _whole(reply)


async def _last_answer(request: web.BaseRequest, die: Die) -> web.Response:
    """What a request gets whose engine died under it."""
    match die.ending:
        case Ending.ENGINE_CORE | Ending.EMPTY | Ending.TEXT:
            return _instead(presets.DEATHS[die.ending])
        case Ending.RESET:
            await connections.reset(request)
        case Ending.SILENCE:
            await connections.gone()
    assert_never(die.ending)


def _whole(reply: Reply) -> web.Response:
    response = web.Response(body=reply.body, headers={"Content-Type": reply.content_type})
    if reply.content_type == EVENT_STREAM:
        response.enable_chunked_encoding()
    return response


def _instead(fault: Respond) -> web.Response:
    headers = {"Content-Type": fault.content_type, **fault.headers}
    return web.Response(status=fault.status, body=fault.body.encode(), headers=headers)

"""Scripting a fake server from another process, over its own port.

    POST   /fake/faults      {"fault": {"kind": "slow", "seconds": 2}, "match": {"text": "row-7"}, "times": 1}
                             or {"preset": "mesh_503", "match": {"route": "/health"}}; answers {"id": 1}
    GET    /fake/faults      the faults in force, with how often each was seen and has fired
    DELETE /fake/faults      lifts all of them, thaws the engine and wakes it
    DELETE /fake/faults/1    lifts one
    POST   /fake/die         {"seconds": 2, "ending": "empty"}: the engine dies now; no field is needed

The kinds of fault and their fields stand in `faults.py`, the presets in `presets.py`. These routes are exempt
from faults and from the API key, and are neither logged nor counted.
"""

from typing import TypeVar

import msgspec
from aiohttp import web

from dispatcher.testing import refusals
from dispatcher.testing.faults import ANY, Die, Fault, FaultScript, Injection, Match
from dispatcher.testing.lifecycle import Lifecycle
from dispatcher.testing.presets import PRESETS

PREFIX = "/fake/"
T = TypeVar("T")


class _Order(msgspec.Struct, forbid_unknown_fields=True):
    """What is posted to /fake/faults."""

    fault: Fault | None = None
    preset: str | None = None
    match: Match = ANY
    times: int | None = None


def clear(life: Lifecycle, script: FaultScript) -> None:
    """Lift all faults, thaw the engine and wake it."""
    script.clear()
    life.thaw()
    life.process.update(sleeping=False)


def control(life: Lifecycle, script: FaultScript, method: str, path: str, raw: bytes) -> web.Response:
    """Carry out one order. Raises RefusalError, saying which field is wrong."""
    match method, path.removeprefix(PREFIX):
        case "POST", "faults":
            return _inject(script, raw)
        case "GET", "faults":
            return _json([_shown(injection) for injection in script.injections()])
        case "DELETE", "faults":
            clear(life, script)
            return _json({})
        case "DELETE", name if name.startswith("faults/"):
            return _withdraw(script, name.removeprefix("faults/"))
        case "POST", "die":
            life.begin_death(_decoded(raw or b"{}", Die))
            return _json({})
        case _:
            raise refusals.not_found()


def _inject(script: FaultScript, raw: bytes) -> web.Response:
    order = _decoded(raw, _Order)
    fault = order.fault if order.preset is None else PRESETS.get(order.preset)
    if fault is None:
        names = ", ".join(PRESETS)
        raise refusals.refusal(f"give a `fault`, or a `preset` of these: {names}", param="fault")
    return _json({"id": script.inject(fault, order.match, order.times).id})


def _withdraw(script: FaultScript, number: str) -> web.Response:
    if not number.isdecimal() or not script.withdraw(int(number)):
        raise refusals.not_found()
    return _json({})


def _shown(injection: Injection) -> dict[str, object]:
    return {
        "id": injection.id,
        "fault": injection.fault,
        "match": injection.match,
        "times": injection.times,
        "seen": injection.seen,
        "fired": injection.fired,
    }


def _decoded(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise refusals.refusal(str(exc)) from exc


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=refusals.JSON)

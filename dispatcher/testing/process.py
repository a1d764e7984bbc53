"""One life of a fake server's process: what a restart begins anew, and what it says of itself."""

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from dispatcher.testing import exposition, refusals
from dispatcher.testing.engine import EngineLoad
from dispatcher.testing.exposition import Counters
from dispatcher.testing.flights import Flights
from dispatcher.testing.pace import Pace
from dispatcher.testing.replies import Reply
from dispatcher.testing.settings import FakeServerSettings

if TYPE_CHECKING:
    from dispatcher.testing.faults import Die


class Process:
    """A server process between its start and its death."""

    def __init__(self, settings: FakeServerSettings, flights: Flights, started_after: float = 0.0) -> None:
        self.pace = Pace(settings.engine)
        self.started_at = max(round(time.time(), 2), round(started_after + 0.01, 2))
        """Seconds since the epoch, in hundredths as Linux tells them; never those of the process before."""
        self.counters = Counters()
        self.death: Die | None = None
        self.sleeping = False
        self.frozen = False
        self._spoke_last = asyncio.Event()
        self._settings = settings
        self._flights = flights

    def update(self, *, frozen: bool | None = None, sleeping: bool | None = None) -> None:
        """Freeze or thaw, put to sleep or wake: an engine works when it is neither frozen nor asleep."""
        self.frozen = self.frozen if frozen is None else frozen
        self.sleeping = self.sleeping if sleeping is None else sleeping
        self.pace.freeze(frozen=self.frozen or self.sleeping)

    def count(self, reply: Reply) -> None:
        """Count a good answer."""
        self.counters.prompt_tokens += reply.prompt_tokens
        self.counters.generation_tokens += reply.output_tokens
        for reason in reply.finish_reasons:
            self.counters.finished[reason] += 1

    async def last_words(self, timeout_s: float) -> None:
        """Wait until /health has answered after the engine's death, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._spoke_last.wait()

    # --- what it says of itself ---

    def health(self) -> web.Response:
        """GET /health: says nothing about a frozen engine, as vLLM's does not."""
        if self.death is None:
            return web.Response()
        self._spoke_last.set()
        return web.Response(status=self.death.last_health)

    def models(self) -> web.Response:
        """GET /v1/models."""
        first = self._settings.models[0]
        served = [(name, self._settings.root or first, None) for name in self._settings.models]
        adapters = [(name, name, first) for name in self._settings.adapters]
        entries = [self._model(name, root, parent) for name, root, parent in (*served, *adapters)]
        return _json({"object": "list", "data": entries})

    def version(self) -> web.Response:
        """GET /version."""
        return _json({"version": self._settings.version})

    def load(self) -> web.Response:
        """GET /load."""
        return _json({"server_load": 0 if self.frozen else len(self._flights)})

    def is_sleeping(self) -> web.Response:
        """GET /is_sleeping, in development mode."""
        return _json({"is_sleeping": self.sleeping})

    def sleep(self) -> web.Response:
        """POST /sleep, in development mode: requests wait until the engine is woken."""
        self.update(sleeping=True)
        return web.Response()

    def wake_up(self) -> web.Response:
        """POST /wake_up, in development mode."""
        self.update(sleeping=False)
        return web.Response()

    def metrics(self) -> web.Response:
        """GET /metrics. A frozen engine shows nothing running (seen on vLLM 0.32.0)."""
        load = self._load()
        text = exposition.exposition(
            self._settings, load, self.counters, self.started_at, sleeping=self.sleeping
        )
        return web.Response(body=text.encode(), headers={"Content-Type": exposition.CONTENT_TYPE})

    def _load(self) -> EngineLoad:
        if self.frozen:
            return EngineLoad()
        counters = self.counters
        return self.pace.load() or EngineLoad(
            running=len(self._flights),
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
        )

    def _model(self, name: str, root: str, parent: str | None) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": int(self.started_at),
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": self._settings.max_model_len,
            "permission": [self._permission()],
        }

    def _permission(self) -> dict[str, object]:
        """A constant of OpenAI's older API, which vLLM still sends."""
        return {
            "id": f"modelperm-{os.getpid():016x}",
            "object": "model_permission",
            "created": int(self.started_at),
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=refusals.JSON)

"""What every call of the client goes through: a server is chosen, and given a body that it understands."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from dispatcher.descriptors import descriptors_for_requests
from dispatcher.errors import ConfigError, Fault
from dispatcher.model import ServerSpec
from dispatcher.vllm.client.constraints import constrains, spelled
from dispatcher.vllm.client.facts import Facts, first_model, of_each
from dispatcher.vllm.client.generation import unreadable
from dispatcher.vllm.client.messages import encode
from dispatcher.vllm.client.sender import Reply, Sender
from dispatcher.vllm.client.servers import Servers
from dispatcher.vllm.prober import HttpProber
from dispatcher.vllm.transport import AiohttpTransport

DESCRIPTORS_RESERVED: Final = 256
"""Descriptors left to probes and to the program that the client is a part of."""


class Wire:
    """An open client's connections. An async context manager; use it inside one event loop.

    Raises ConfigError with every fault of its settings.
    """

    def __init__(
        self,
        servers: Servers,
        *,
        model: str | None,
        version: str | None,
        timeout_s: float | None,
        max_attempts: int,
    ) -> None:
        _check(model, timeout_s, max_attempts)
        self._servers = servers
        self._model = model
        self._version = version
        self._timeout_s = timeout_s
        self._max_attempts = max_attempts
        self._transport = AiohttpTransport()
        self._prober = HttpProber()
        self._stack = AsyncExitStack()
        self._open = False

    async def __aenter__(self) -> Self:
        self._discovering = asyncio.Lock()
        self.facts = Facts(self._prober, self._version)
        self._sender = Sender(
            self._transport,
            self._servers,
            self.facts,
            max_attempts=self._max_attempts,
            timeout_s=self._timeout_s,
            open_max=descriptors_for_requests(DESCRIPTORS_RESERVED),
        )
        await self._stack.enter_async_context(self._transport)
        await self._stack.enter_async_context(self._prober)
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        await self._stack.aclose()

    async def send(self, path: str, body: Mapping[str, Any], *, checked: bool = False) -> Reply:
        """Post a body, with the client's model where it names none.

        A constraint is spelled as the server's version has it; `checked`: the caller holds the answer against
        it. Raises RequestFailedError, ConstraintIgnoredError, InputError.
        """
        self._check_open()
        model = body.get("model") or await self.model()
        fields = body if model is None else {**body, "model": model}

        async def body_for(server: ServerSpec) -> bytes:
            if not constrains(fields):
                return encode(fields)
            version = await self.facts.understands(server)
            return encode(spelled(fields, version, server.id, checked=checked))

        return await self._sender.send(path, model if isinstance(model, str) else None, body_for)

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[Reply, dict[str, Any]]:
        """Post a body; the reply, and its JSON object decoded."""
        reply = await self.send(path, body)
        try:
            return reply, msgspec.json.decode(reply.body, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise unreadable(reply, f"the answer cannot be read: {error}") from error

    async def model(self) -> str | None:
        """The model to ask for, discovered once where none was named; None where no server lists any."""
        async with self._discovering:
            if self._model is None:
                self._model = first_model(await of_each(self._servers.listed(), self.facts.models))
            return self._model

    def named(self, url: str | None) -> Sequence[ServerSpec]:
        """The server at this URL, or all of them. Raises ConfigError where there is none."""
        self._check_open()
        servers = self._servers.listed()
        if url is None:
            return servers
        named = [server for server in servers if server.id == url]
        if not named:
            listed = ", ".join(server.id for server in servers)
            raise ConfigError((Fault("server", f"must be one of {listed}"),))
        return named

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("use an AsyncVLLMClient as `async with ... as client:`")


def _check(model: str | None, timeout_s: float | None, max_attempts: int) -> None:
    faults = []
    if model is not None and not model:
        faults.append(Fault("model", "must not be empty"))
    if timeout_s is not None and not timeout_s > 0:
        faults.append(Fault("timeout_s", f"must be above 0, got {timeout_s}"))
    if max_attempts < 1:
        faults.append(Fault("max_attempts", f"must be 1 or more, got {max_attempts}"))
    if faults:
        raise ConfigError(tuple(faults))

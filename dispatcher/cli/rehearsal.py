"""A fake server on the command line, until a signal ends it."""

import asyncio
import signal
import sys

import uvloop

from dispatcher.cli.exits import Exit
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.server import FakeServer
from dispatcher.testing.settings import FakeServerSettings


def serve(
    address: tuple[str, int],
    *,
    models: tuple[str, ...],
    max_sequences: int | None,
    answer_tokens: int,
    api_key: str | None,
) -> Exit:
    """Serve at this host and port, say where, and give the exit status. No `max_sequences`: no engine."""
    settings = FakeServerSettings(
        models=models,
        engine=None if max_sequences is None else EngineSettings(max_sequences=max_sequences),
        answer_tokens=answer_tokens,
        api_key=api_key,
    )
    host, port = address
    try:
        uvloop.run(_serve(settings, host, port))
    except OSError as error:
        sys.stderr.write(f"dispatcher: {host}:{port} cannot be listened on: {error.strerror}\n")
        return Exit.USAGE
    return Exit.DONE


async def _serve(settings: FakeServerSettings, host: str, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with FakeServer(settings, host, port) as server:
        sys.stdout.write(f"{server.url} serves {', '.join(settings.models)}\n")
        sys.stdout.flush()
        await stop.wait()

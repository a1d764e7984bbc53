"""`dispatcher fake-server`."""

import asyncio
import signal
import sys
from typing import Annotated

import typer
import uvloop

from dispatcher.cli.exits import Exit
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.server import FakeServer
from dispatcher.testing.settings import FakeServerSettings


def fake_server(  # one parameter for each flag is how typer is told of them
    port: Annotated[int, typer.Option(help="0 lets the system choose one.")] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    model: Annotated[list[str] | None, typer.Option(help="A served name. Repeatable.")] = None,
    instant: Annotated[bool, typer.Option("--instant", help="Answer at once, without an engine.")] = False,  # noqa: FBT002
    max_sequences: Annotated[int, typer.Option(help="Sequences that the engine runs at once.")] = 256,
    answer_tokens: Annotated[int, typer.Option(help="Mean length of an answer.")] = 32,
    api_key: Annotated[str | None, typer.Option(help="Asked for under /v1.")] = None,
) -> None:
    """Run a fake vLLM server to rehearse a job with: the real routes, errors and metrics, and no GPU.

    Faults are scripted while it runs: POST /fake/faults, POST /fake/die; see the README.
    """
    settings = FakeServerSettings(
        models=tuple(model or ("fake-model",)),
        engine=None if instant else EngineSettings(max_sequences=max_sequences),
        answer_tokens=answer_tokens,
        api_key=api_key,
    )
    try:
        uvloop.run(_serve(settings, host, port))
    except OSError as error:
        sys.stderr.write(f"dispatcher: {host}:{port} cannot be listened on: {error.strerror}\n")
        raise typer.Exit(Exit.USAGE) from None


async def _serve(settings: FakeServerSettings, host: str, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with FakeServer(settings, host, port) as server:
        sys.stdout.write(f"{server.url} serves {', '.join(settings.models)}\n")
        sys.stdout.flush()
        await stop.wait()

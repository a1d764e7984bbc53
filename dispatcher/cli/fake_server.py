"""`dispatcher fake-server`."""

from typing import Annotated

import typer


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
    from dispatcher.cli.rehearsal import serve  # noqa: PLC0415  # as in `run`

    raise typer.Exit(
        serve(
            (host, port),
            models=tuple(model or ("fake-model",)),
            max_sequences=None if instant else max_sequences,
            answer_tokens=answer_tokens,
            api_key=api_key,
        )
    )

"""`dispatcher register`."""

from typing import Annotated, Literal

import typer

from dispatcher.cli.remote import URL_DEFAULT, Url


def register(
    server: Annotated[str, typer.Option(help="The server's URL, as the service is to reach it.")],
    token: Annotated[
        str,
        typer.Option(
            envvar="DISPATCHER_REGISTRATION_TOKEN", help="A registration token. Better: the variable."
        ),
    ],
    url: Url = URL_DEFAULT,
    server_api_key: Annotated[
        str | None, typer.Option(envvar="DISPATCHER_SERVER_API_KEY", help="The key that the server asks for.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Requests in flight there. Default: learned.")] = None,
    health: Annotated[
        str | None,
        typer.Option(help="The server's URL from here, where it is another: http://127.0.0.1:8000."),
    ] = None,
    log_format: Annotated[Literal["console", "json"], typer.Option(help="How it logs.")] = "console",
) -> None:
    """Run beside a vLLM server: register it with a service while it answers, deregister at SIGTERM.

    Exit status 0 after a signal; 2 where the service will not have it, and why.
    """
    from dispatcher.app.registrar import Registrant  # noqa: PLC0415  # as in `run`
    from dispatcher.cli.registering import run_registrar  # noqa: PLC0415

    registrant = Registrant(url, server, token, server_api_key, limit, health)
    raise typer.Exit(run_registrar(registrant, log_format))

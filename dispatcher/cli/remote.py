"""What all commands to a running service have in common: where it is, a key, how they print and end."""

import json as jsonlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from dispatcher.cli.exits import Exit, tell
from dispatcher.errors import DispatcherError

if TYPE_CHECKING:
    from dispatcher.cli.connection import Connection

URL_DEFAULT = "http://127.0.0.1:8080"
Url = Annotated[str, typer.Option(envvar="DISPATCHER_URL", help="Where the service is.")]
ApiKey = Annotated[
    str | None,
    typer.Option(envvar="DISPATCHER_API_KEY", help="A key for it, where it has keys. Better: the variable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def act(url: str, api_key: str | None, action: "Callable[[Connection], Exit | None]") -> None:
    """Do this with the service, and end the command: with what it gave, or after saying what is wrong."""
    from dispatcher.cli.connection import Connection  # noqa: PLC0415  # as in `run`

    try:
        with Connection(url, api_key) as connection:
            status = action(connection)
    except DispatcherError as error:
        tell(error)
        raise typer.Exit(Exit.USAGE) from None
    raise typer.Exit(Exit.DONE if status is None else status)


def print_json(value: object) -> None:
    """One JSON document, for a program to read."""
    sys.stdout.write(jsonlib.dumps(value, indent=2) + "\n")

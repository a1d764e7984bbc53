"""`dispatcher demo`."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    directory: Annotated[Path, typer.Option(help="Where the files go.")] = Path("dispatcher-demo"),
) -> None:
    """Watch a whole job on fake servers, one of which dies and comes back. No GPU needed."""
    from dispatcher.cli.demonstration import demonstrate  # noqa: PLC0415  # as in `run`

    raise typer.Exit(demonstrate(directory))

"""`dispatcher gc`."""

from typing import Annotated

import typer

from dispatcher.cli import options


def gc(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: say what would be removed.")
    ] = False,
    config: options.ConfigFile = None,
) -> None:
    """Remove what killed nodes have left in the store: bytes that belong to no file and no job.

    Safe while services run: only what is older than `storage.orphans_kept_s` is removed.
    """
    from dispatcher.cli.collecting import run_collection  # noqa: PLC0415  # `--help` need not wait for it

    raise typer.Exit(run_collection(config, dry_run=dry_run))

"""`dispatcher migrate`."""

from typing import Annotated

import typer

from dispatcher.cli import options


def migrate(
    *,
    check: Annotated[
        bool,
        typer.Option("--check", help="Change nothing: say what is to be done; status 1 where something is."),
    ] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Change nothing: print the statements that would be run.")
    ] = False,
    grant_to: Annotated[
        str | None,
        typer.Option(metavar="ROLE", help="Let a role work on the queue, but not change its tables."),
    ] = None,
    config: options.ConfigFile = None,
) -> None:
    """Bring the tables of the shared queue (`queue.url`) to this version's form.

    It is run by the owner of the tables. No other command changes them.
    """
    from dispatcher.cli.migration import Wanted, run_migration  # noqa: PLC0415  # `--help` need not wait for it

    raise typer.Exit(run_migration(config, Wanted(check=check, sql=sql, grant_to=grant_to)))

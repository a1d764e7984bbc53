"""`dispatcher simulate`."""

from pathlib import Path
from typing import Annotated

import typer


def simulate(
    plan: Annotated[Path | None, typer.Argument(help="A YAML file with a fleet and a job.")] = None,
    seed: Annotated[
        int, typer.Option(help="What all chance comes from; without a plan, the scenario to replay.")
    ] = 0,
    count: Annotated[
        int, typer.Option(min=1, help="Without a plan: how many scenarios, from --seed on.")
    ] = 1,
    several: Annotated[  # noqa: FBT002  # how typer is told of a flag
        bool, typer.Option("--several", help="Without a plan: the scenarios of several nodes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,  # noqa: FBT002  # how typer is told of a flag
) -> None:
    """Rehearse a job in virtual time: how long it takes, how busy each server is, what churn costs.

    Without a plan, replay the dispatcher's own test scenarios, in which everything goes wrong, from their
    seeds. Exit status 1 where one breaks a promise.
    """
    from dispatcher.cli.rehearsing import rehearse_plan, replay  # noqa: PLC0415  # takes a second: `--help` need not wait for it

    raise typer.Exit(
        replay(seed, count, several=several, as_json=as_json)
        if plan is None
        else rehearse_plan(plan, seed, as_json=as_json)
    )

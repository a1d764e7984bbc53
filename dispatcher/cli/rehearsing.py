"""What `dispatcher simulate` does and prints."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dispatcher.cli.exits import Exit, exit_for, tell
from dispatcher.cli.figures import count as counted
from dispatcher.cli.figures import duration, rate, share
from dispatcher.errors import DispatcherError
from dispatcher.testing.simulation.making import scenario_of
from dispatcher.testing.simulation.nodes.making import nodes_scenario_of
from dispatcher.testing.simulation.nodes.run import run_nodes
from dispatcher.testing.simulation.nodes.scenario import NodesScenario
from dispatcher.testing.simulation.plan import read_plan
from dispatcher.testing.simulation.rehearsal import Rehearsal, ServerUse, by_group, rehearse
from dispatcher.testing.simulation.run import Report, run_scenario
from dispatcher.testing.simulation.scenario import Scenario

SERVERS_SHOWN_MAX = 32
"""More servers than this are shown by group."""
NODE_ROWS_PER_S = 2_000
"""What one dispatcher process does, about (tests/benchmarks/overhead)."""
_HOUR = 3600.0


def rehearse_plan(path: Path, seed: int, *, as_json: bool) -> Exit:
    """Rehearse a plan and print how it went."""
    try:
        plan = read_plan(path)
    except DispatcherError as error:
        tell(error)
        return exit_for(error)
    went = rehearse(plan, seed)
    if as_json:
        _print_json({**asdict(went), "efficiency": went.efficiency, "rows_per_s": went.rows_per_s})
    else:
        _print(went)
    return Exit.FAILED_ROWS if went.failed else Exit.DONE


def replay(seed: int, count: int, *, several: bool, as_json: bool) -> Exit:
    """Run scenarios, of one node or of several, and say which of them break a promise."""
    failed = 0
    for number in range(seed, seed + count):
        scenario, report = _several(number) if several else _one(number)
        failed += not report.passed
        if as_json:
            _print_json({"scenario": scenario, "report": report})
        elif count == 1 or not report.passed:
            sys.stdout.writelines(f"{line}\n" for line in report_lines(report))
    if not as_json and count > 1:
        sys.stdout.write(f"{count} scenarios from seed {seed}: {failed} broke a promise\n")
    return Exit.FAILED_ROWS if failed else Exit.DONE


def _one(seed: int) -> tuple[Scenario, Report]:
    scenario = scenario_of(seed)
    return scenario, run_scenario(scenario)


def _several(seed: int) -> tuple[NodesScenario, Report]:
    scenario = nodes_scenario_of(seed)
    return scenario, run_nodes(scenario)


def report_lines(report: Report) -> Iterator[str]:
    """A scenario's course and end, for a person."""
    if not report.passed:
        yield from report.latest
    yield f"seed {report.seed}: {'kept' if report.passed else 'BROKEN'}"
    yield from (f"  {breach}" for breach in report.breaches)
    yield f"  rows: {', '.join(f'{counted(rows)} {code}' for code, rows in report.outcomes.items())}"
    yield f"  {counted(report.events)} events in {duration(report.virtual_s)}, digest {report.digest[:16]}"


def _print_json(document: object) -> None:
    sys.stdout.write(f"{msgspec.json.encode(document).decode()}\n")


def _print(went: Rehearsal) -> None:
    console = Console(highlight=False)
    console.print(_table(went.servers))
    for line in summary_lines(went):
        console.print(line, soft_wrap=True, markup=False)


def summary_lines(went: Rehearsal) -> Iterator[str]:
    """The figures of the whole, for a person."""
    uses = went.servers
    gpu_s = sum(use.up_s + use.down_s for use in uses)
    lost_s, down_s = sum(use.lost_s for use in uses), sum(use.down_s for use in uses)
    answered, pace = went.rows - went.failed, rate(went.rows_per_s)
    yield f"makespan     {duration(went.makespan_s)} for {counted(answered)} rows, {pace} rows/s"
    yield f"ideal        {duration(went.ideal_s)}: {share(went.ideal_s, went.makespan_s)} of the makespan"
    if went.failed:
        yield f"failed       {counted(went.failed)} rows: poison, or too many servers failed while they ran"
    yield f"servers      {rate(gpu_s / _HOUR)} server hours in all"
    deaths, resends = sum(use.deaths for use in uses), max(0, went.sends - went.rows)
    yield (
        f"churn        {counted(deaths)} deaths; {rate(down_s / _HOUR)} server hours down, "
        f"{rate(lost_s / _HOUR)} spent on answers that were lost; {counted(resends)} resends"
    )
    if went.rows_per_s > NODE_ROWS_PER_S * went.nodes:
        yield f"note         one dispatcher process sends about {counted(NODE_ROWS_PER_S)} rows/s at most"


def _table(uses: Sequence[ServerUse]) -> Table:
    table = Table()
    grouped = len(uses) > SERVERS_SHOWN_MAX
    table.add_column("servers" if grouped else "server")
    for heading in ("rows", "output tokens", "utilisation", "up", "down", "deaths", "lost tokens"):
        table.add_column(heading, justify="right")
    for cells in _group_rows(uses) if grouped else map(_server_row, uses):
        table.add_row(*cells)
    return table


def _server_row(use: ServerUse) -> tuple[str, ...]:
    return (
        escape(use.server),
        counted(use.rows),
        counted(use.tokens),
        share(use.utilisation, 1.0) if use.up_s else "-",
        duration(use.up_s),
        duration(use.down_s),
        counted(use.deaths),
        counted(use.lost_tokens),
    )


def _group_rows(uses: Sequence[ServerUse]) -> Iterator[tuple[str, ...]]:
    for group, members in by_group(uses).items():
        shares = [use.utilisation for use in members]
        yield (
            f"{counted(len(members))} x {escape(group)}",
            counted(sum(use.rows for use in members)),
            counted(sum(use.tokens for use in members)),
            f"{share(min(shares), 1.0)} to {share(max(shares), 1.0)}, mean {share(mean(shares), 1.0)}",
            duration(sum(use.up_s for use in members)),
            duration(sum(use.down_s for use in members)),
            counted(sum(use.deaths for use in members)),
            counted(sum(use.lost_tokens for use in members)),
        )

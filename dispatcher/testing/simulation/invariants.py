"""The promises of docs/architecture.md as checks on a finished simulation, and how long it may take."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from dispatcher.pool.limits import LIMIT_START
from dispatcher.testing.simulation.capacity import batch, rows_per_s
from dispatcher.testing.simulation.ledger import Ledger, RowRecord
from dispatcher.testing.simulation.rows import FAULTY, JobPlan, RowKind, custom_id
from dispatcher.testing.simulation.scenario import Scenario, ServerPlan

FREE_RESENDS_MAX = 10
DEATHS_OF_POISON_MIN = 2
POISON_COST_S = 90.0
"""A server's death by a poison row: down 5 to 20 s, and out for the longest back-off of 60 s."""
_CHARGED = ("server_error", "invalid_response", "timeout", "invalid_request")
_EXPECTED = {
    RowKind.TOO_LONG: ("context_length",),
    RowKind.BROKEN: _CHARGED,
    RowKind.SILENT: ("timeout", "poison"),
    RowKind.POISON: ("poison",),
}


class _Error(msgspec.Struct):
    code: str


class _Line(msgspec.Struct):
    custom_id: str
    error: _Error | None


def check_outcomes(
    scenario: Scenario,
    ledger: Ledger,
    spoilt: Mapping[int, int],
    files: tuple[Path, Path],
    times: int | None = None,
) -> dict[str, int]:
    """Hold the files of answers and of errors to the promises; returns the rows by how they ended.

    `times` is how often a row's outcome may have been made, where the scenario does not say.
    """
    succeeded, failed = (list(_lines(file)) for file in files)
    order = {custom_id(index): index for index in range(scenario.job.rows)}
    ledger.require(all(line.error is None for line in succeeded), "the output file holds an error")
    for name, lines in (("output", succeeded), ("error", failed)):
        indexes = [order.get(line.custom_id, -1) for line in lines]
        ledger.require(indexes == sorted(set(indexes)), f"the {name} file is out of order, or repeats a row")
    found = Counter(line.custom_id for line in (*succeeded, *failed))
    ledger.require(found == Counter(order.keys()), "not every row has exactly one outcome")
    codes = {order[line.custom_id]: line.error.code if line.error else "ok" for line in (*succeeded, *failed)}
    for index, code in sorted(codes.items()):
        _check_row(scenario, ledger, index, code, spoilt.get(index, 0))
        rejected, most = ledger.row(index).rejected, times or 1 + len(scenario.deaths) + _losses(scenario)
        ledger.require(rejected <= most, f"row {index} was rejected {rejected} times, not {most}")
    return dict(sorted(Counter(codes.values()).items()))


def _lines(path: Path) -> Iterator[_Line]:
    if path.exists():
        decoder = msgspec.json.Decoder(_Line)
        yield from (decoder.decode(line) for line in path.read_bytes().split(b"\n")[:-1])


def _check_row(scenario: Scenario, ledger: Ledger, index: int, code: str, spoilt: int) -> None:
    kind, record = scenario.job.odd.get(index, RowKind.GOOD), ledger.row(index)
    if kind in FAULTY:
        fair = code in _EXPECTED[kind] or _may_fail(scenario, code, record, spoilt)
        ledger.require(fair, f"row {index}, {kind}, ended as {code}")
    elif code != "ok":
        fair = _may_fail(scenario, code, record, spoilt)
        ledger.require(fair, f"row {index} is good and ended as {code}: {record}, {spoilt} spoilt answers")


def _losses(scenario: Scenario) -> int:
    """How often an outcome that was not durable yet may have gone to another lease."""
    second = 0 if scenario.second_node_at is None else 1
    return len(scenario.queue_outages) + len(scenario.clock_jumps) + second


def _may_fail(scenario: Scenario, code: str, record: RowRecord, spoilt: int) -> bool:
    """Whether a row may end like this within the documented bounds, for what servers did to it."""
    if code in _CHARGED:
        return spoilt + record.timeouts >= scenario.max_attempts
    if code in ("resends_exhausted", "model_not_found"):
        return record.sends > FREE_RESENDS_MAX
    return code == "poison" and record.breaks + record.refusals >= DEATHS_OF_POISON_MIN


def deadline_s(scenario: Scenario) -> float:
    """Virtual seconds that a scenario may take: a multiple of the ideal, and what its faults cost.

    Six times what the fleet needs for the tokens alone, as faults take servers away while it works; for each
    fault its own length, the time to find out, and the longest back-off; for each end of a dispatcher its
    leases' time; what the slowest server needs for twice the limit that it starts with; and two minutes.
    """
    work_s = 6 * scenario.job.rows / min(_rows_per_s(scenario, model) for model in scenario.job.models)
    found_out_s = scenario.stall_s + scenario.probe_timeout_s + 60.0
    faults_s = sum(fault.seconds + found_out_s for fault in scenario.faults)
    deaths_s = sum(death.pause_s + scenario.lease_s + 30.0 for death in scenario.deaths)
    outages_s = sum(outage.seconds + scenario.lease_s for outage in scenario.queue_outages)
    jumps_s = sum(abs(jump.seconds) + scenario.lease_s for jump in scenario.clock_jumps)
    disk_s = scenario.full_disk.seconds + 10.0 if scenario.full_disk else 0.0
    odd_s = sum(_odd_s(scenario, kind) for kind in scenario.job.odd.values())
    joins_s = max(plan.joins_at + 2 * _first_load_s(plan, scenario.job) for plan in scenario.servers)
    return 120.0 + work_s + faults_s + deaths_s + outages_s + jumps_s + disk_s + odd_s + joins_s


def _rows_per_s(scenario: Scenario, model: str) -> float:
    """What the servers of one model can do, limits and shares of the job aside."""
    job, able = scenario.job, [plan for plan in scenario.servers if model in plan.models]
    pace = sum(rows_per_s(plan.engine, job) / _slowed(plan, job) for plan in able)
    return pace * len(job.models)


def _first_load_s(plan: ServerPlan, job: JobPlan) -> float:
    """What a server needs for the rows that it may be given while it ramps up, before telemetry is heard."""
    return min(plan.limit or LIMIT_START, job.rows) / rows_per_s(plan.engine, job)


def _slowed(plan: ServerPlan, job: JobPlan) -> float:
    """How much slower than full a server is by its fixed limit."""
    full = batch(plan.engine, job)
    return full / min(full, plan.limit or full)


def _odd_s(scenario: Scenario, kind: RowKind) -> float:
    """What one odd row may hold things up for: timeouts one after the other, servers that die of it."""
    match kind:
        case RowKind.SILENT:
            given_up_s = (FREE_RESENDS_MAX + 1) * (scenario.stall_s + 2 * scenario.probe_timeout_s)
            return given_up_s + scenario.max_attempts * (scenario.request_timeout_s or 0.0)
        case RowKind.POISON:
            return (FREE_RESENDS_MAX + 1) * POISON_COST_S
        case _:
            return 0.0

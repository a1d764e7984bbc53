"""Scenarios of several nodes made from a seed. The same seed makes the same scenario, on every machine."""

from dataclasses import replace
from random import Random

from dispatcher.testing.simulation.making import scenario_of
from dispatcher.testing.simulation.nodes.scenario import ENDS, Moment, NodesScenario, NodeTrouble, Trouble
from dispatcher.testing.simulation.rows import JobPlan, RowKind
from dispatcher.testing.simulation.scenario import Scenario

HORIZON_S = 90.0
"""Troubles begin within this time."""
ROWS_MAX = 300
FAULTS_MAX = 2
_ODD = (RowKind.TOO_LONG, RowKind.BROKEN, RowKind.NAN)
"""Rows that are never answered, or that end servers, are what scenarios of one node are for."""
_ON_ONE_MACHINE = (Trouble.KILLED, Trouble.DRAINED, Trouble.FROZEN, Trouble.NO_QUEUE, Trouble.QUEUE_DEAF)
_MOMENTS = {
    **dict.fromkeys((*ENDS, Trouble.FROZEN), tuple(Moment)),
    **dict.fromkeys((Trouble.NO_QUEUE, Trouble.QUEUE_DEAF), (Moment.ANY, Moment.LEASED, Moment.SETTLED)),
    **dict.fromkeys((Trouble.NO_STORE, Trouble.STORE_DEAF), (Moment.ANY, Moment.PUTTING, Moment.PUT)),
}


def nodes_scenario_of(seed: int) -> NodesScenario:
    """The scenario of a seed: two to four nodes, and everything that can go wrong between them."""
    random = Random(f"nodes {seed}")
    base = _base(seed)
    nodes = random.choice((2, 2, 3, 4))
    shared_disk = random.random() < 0.25  # noqa: PLR2004  # odds, as all such numbers here
    return NodesScenario(
        base,
        starts=tuple(sorted(random.choice((0.0, random.uniform(0.0, 30.0))) for _ in range(nodes))),
        clocks_ahead=tuple(random.choice((0.0, random.uniform(-3600.0, 3600.0))) for _ in range(nodes)),
        troubles=_troubles(random, nodes, base, shared_disk=shared_disk),
        shared_disk=shared_disk,
        checkpoint_s=random.choice((5.0, 10.0, 30.0)),
        rows_at_once=random.choice((base.shard_size, 64, 64, None)),
    )


def _base(seed: int) -> Scenario:
    """The servers, the job and some faults of the one-node scenario of this seed."""
    scenario = scenario_of(seed)
    job: JobPlan = scenario.job
    rows = min(ROWS_MAX, job.rows)
    odd = {index: kind for index, kind in job.odd.items() if kind in _ODD and index < rows}
    return Scenario(
        seed,
        scenario.servers,
        replace(job, rows=rows, odd=odd),
        faults=scenario.faults[:FAULTS_MAX],
        shard_size=min(32, scenario.shard_size),
        lease_s=scenario.lease_s,
        sync_s=scenario.sync_s,
        stall_s=scenario.stall_s,
    )


def _troubles(random: Random, nodes: int, base: Scenario, *, shared_disk: bool) -> tuple[NodeTrouble, ...]:
    kinds = _ON_ONE_MACHINE if shared_disk else tuple(Trouble)
    troubles: list[NodeTrouble] = []
    for _ in range(random.choice((0, 1, 2, 3, 4, 6))):
        kind = random.choice(kinds)
        at = random.uniform(0.0, HORIZON_S) * random.random()
        seconds = random.choice((1.0, 10.0, base.lease_s * random.uniform(0.5, 2.5)))
        everywhere = kind not in ENDS and random.random() < 0.2  # noqa: PLR2004  # the database is down, say
        places = range(nodes) if everywhere else (random.randrange(nodes),)
        moment = Moment.ANY if everywhere else random.choice(_MOMENTS.get(kind, (Moment.ANY,)))
        troubles.extend(NodeTrouble(kind, place, at, seconds, moment) for place in places)
    return tuple(sorted(troubles, key=lambda trouble: (trouble.at, trouble.node)))

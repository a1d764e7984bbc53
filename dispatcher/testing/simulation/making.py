"""Scenarios made from a seed. The same seed makes the same scenario, on every machine."""

from dataclasses import replace
from random import Random

from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.simulation.rows import JobPlan, Lengths, RowKind
from dispatcher.testing.simulation.scenario import (
    SPOILING,
    ClockJump,
    Death,
    DeathKind,
    Fault,
    FaultKind,
    Scenario,
    ServerPlan,
    Spell,
)

MODELS = ("model-a", "model-b")
TIMEOUT_S = 60.0
"""What a request has beyond the time that the longest answer takes of the slowest full batch."""
_MILD = tuple(kind for kind in FaultKind if kind not in SPOILING)
HORIZON_S = 90.0
"""Faults begin within this time: most jobs take that long, with what goes wrong."""


def scenario_of(seed: int) -> Scenario:
    """The scenario of a seed."""
    random = Random(seed)
    models = MODELS[: 2 if random.random() < 0.15 else 1]  # noqa: PLR2004  # odds, as all such numbers here
    servers = _servers(random, models)
    job = _job(random, models)
    second_node_at = random.uniform(0.0, 30.0) if random.random() < 0.15 else None  # noqa: PLR2004
    timeout_s = _longest_s(servers, job) + TIMEOUT_S if RowKind.SILENT in job.odd.values() else None
    return Scenario(
        seed,
        servers,
        job,
        faults=_faults(random, len(servers)),
        request_timeout_s=timeout_s,
        shard_size=random.choice((8, 32, 100)),
        lease_s=random.choice((15.0, 30.0, 60.0)),
        sync_s=random.choice((0.05, 0.2, 1.0, 5.0)),
        stall_s=random.choice((10.0, 20.0, 40.0)),
        deaths=_deaths(random, alone=second_node_at is None),
        queue_outages=_queue_outages(random),
        clock_jumps=_clock_jumps(random),
        second_node_at=second_node_at,
        full_disk=_full_disk(random) if second_node_at is None else None,
    )


def _longest_s(servers: tuple[ServerPlan, ...], job: JobPlan) -> float:
    steps = [plan.engine.step_s(plan.engine.max_sequences) for plan in servers]
    return job.output.most * max(steps)


def _servers(random: Random, models: tuple[str, ...]) -> tuple[ServerPlan, ...]:
    count = random.choice((1, 2, 2, 3, 3, 4, 5, 8))
    return tuple(_server(random, models, number) for number in range(max(count, len(models))))


def _server(random: Random, models: tuple[str, ...], number: int) -> ServerPlan:
    fixed = random.random() < 0.2  # noqa: PLR2004
    return ServerPlan(
        _engine(random),
        models=(models[number % len(models)],) if random.random() < 0.6 else models,  # noqa: PLR2004
        joins_at=random.choice((0.0, 0.0, 0.0, random.uniform(1.0, 40.0))),
        waiting_max=random.choice((None, None, None, 0, 4)),
        metrics=random.random() < 0.8,  # noqa: PLR2004
        limit=random.choice((1, 4, 16, 64)) if fixed else None,
        latency_s=random.choice((0.0002, 0.001, 0.01)),
        health_s=random.choice((0.0, 0.001, 0.1, 3.0)),
    )


def _engine(random: Random) -> EngineSettings:
    return EngineSettings(
        max_sequences=random.choice((4, 8, 32, 64, 256)),
        prefill_tokens_per_s=random.choice((5_000.0, 20_000.0)),
        decode_step_s=random.choice((0.01, 0.02, 0.04)),
        decode_step_growth_s=random.choice((0.0, 0.0001, 0.0005)),
        kv_tokens=random.choice((8_192, 30_000, 400_000)),
    )


def _job(random: Random, models: tuple[str, ...]) -> JobPlan:
    rows = random.choice((1, 20, 100, 200, 400, 400, 800))
    return JobPlan(
        rows,
        prompt=Lengths(random.choice((20.0, 200.0)), 0.5, 2_000),
        output=Lengths(random.choice((20.0, 100.0, 200.0)), random.choice((0.0, 0.5, 1.2)), 2_000),
        models=models,
        odd=_odd(random, rows),
    )


def _odd(random: Random, rows: int) -> dict[int, RowKind]:
    odd: dict[int, RowKind] = {}
    for kind in (RowKind.TOO_LONG, RowKind.BROKEN, RowKind.NAN):
        for _ in range(random.choice((0, 0, 1, 5))):
            odd[random.randrange(rows)] = kind
    for kind in (RowKind.POISON, RowKind.SILENT):
        if random.random() < 0.15:  # noqa: PLR2004
            odd[random.randrange(rows)] = kind
    return dict(sorted(odd.items()))


def _faults(random: Random, servers: int) -> tuple[Fault, ...]:
    """Some for any server; answers are spoilt by one server only, as three in a row would fail a good row."""
    spoiler = random.randrange(servers)
    count = random.choice((0, 1, 2, 3, 5, 8))
    kinds = [random.choice(_MILD if random.random() < 0.8 else SPOILING) for _ in range(count)]  # noqa: PLR2004
    faults = [
        Fault(
            kind,
            spoiler if kind in SPOILING else random.randrange(servers),
            at=random.uniform(0.0, HORIZON_S) * random.random(),
            seconds=random.choice((0.5, 5.0, 30.0, 120.0)),
            share=random.choice((0.1, 0.5, 1.0)),
        )
        for kind in kinds
    ]
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _deaths(random: Random, *, alone: bool) -> tuple[Death, ...]:
    """A power cut never beside a second node: it would take what that one has synced to the same disk."""
    if random.random() >= 0.4:  # noqa: PLR2004
        return ()
    deaths = [_death(random) for _ in range(random.choice((1, 1, 2, 3)))]
    cut = DeathKind.POWER_CUT
    return tuple(
        replace(death, kind=DeathKind.KILLED) if death.kind is cut and not alone else death
        for death in deaths
    )


def _queue_outages(random: Random) -> tuple[Spell, ...]:
    if random.random() >= 0.15:  # noqa: PLR2004
        return ()
    return (Spell(random.uniform(0.0, 40.0), random.choice((3.0, 20.0, 90.0))),)


def _clock_jumps(random: Random) -> tuple[ClockJump, ...]:
    if random.random() >= 0.1:  # noqa: PLR2004
        return ()
    return (ClockJump(random.uniform(0.0, 40.0), random.choice((-100.0, 50.0, 3600.0))),)


def _full_disk(random: Random) -> Spell | None:
    """Never with a second node: two that write one journal are safe as long as no write is cut."""
    if random.random() >= 0.15:  # noqa: PLR2004
        return None
    return Spell(random.uniform(0.0, 40.0), random.choice((1.0, 20.0)))


def _death(random: Random) -> Death:
    kind = random.choice((DeathKind.KILLED, DeathKind.KILLED, DeathKind.POWER_CUT, DeathKind.DRAINED))
    return Death(kind, int(10 ** random.uniform(0.3, 3.3)), random.choice((0.1, 3.0, 40.0)))

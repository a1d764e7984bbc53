"""Several nodes that feed the same servers: equal shares, no loss of pace, an end that waits for no one."""

import asyncio
from dataclasses import dataclass, field

import pytest

from dispatcher.testing.simulation.plan import JobShape, Plan, ServerGroup, TokenLengths
from dispatcher.testing.simulation.policies import dispatcher, dispatchers
from dispatcher.testing.simulation.rehearsal import rehearse

USUAL = {"max_sequences": 128, "tokens_per_s": 4_000, "tokens_per_s_alone": 80, "kv_tokens": 200_000}
SHORT_OF_CACHE = {**USUAL, "max_sequences": 512, "tokens_per_s_alone": 40, "kv_tokens": 40_000}
LOOK_S = 5.0
SEED = 7


@dataclass
class Shares:
    """The limits of every node at the one server, every five seconds."""

    pools: list = field(default_factory=list)
    looks: list = field(default_factory=list)

    def started(self, pool):
        self.pools.append(pool)
        if len(self.pools) == 1:
            asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def ratios(self, nodes, since_s, until_s):
        """The largest limit over the smallest, at each look in that time."""
        limits = [limits for at, limits in self.looks if since_s <= at < until_s and len(limits) == nodes]
        return [max(each) / min(each) for each in limits]

    def _look(self):
        loop = asyncio.get_running_loop()
        limits = [
            server.limit.permits(loop.time()) for pool in self.pools for server in pool.servers.values()
        ]
        self.looks.append((loop.time(), limits))
        loop.call_later(LOOK_S, self._look)


def plan(rows, engine, tokens=200, count=1):
    group = ServerGroup.model_validate({**engine, "name": "s", "count": count})
    output = TokenLengths(mean=tokens, spread=0.5, most=8192)
    return Plan(fleet=(group,), job=JobShape(rows=rows, output_tokens=output))


CASES = {
    "2 nodes": ((0, 60), plan(7000, USUAL)),
    "4 nodes": ((0, 40, 80, 120), plan(8000, USUAL)),
    "2 nodes, rows of a minute": ((0, 60), plan(1500, {**USUAL, "kv_tokens": 600_000}, 1500)),
    "4 nodes, short of cache": ((0, 40, 80, 120), plan(4500, SHORT_OF_CACHE)),
}


@pytest.mark.parametrize("case", CASES)
def test_nodes_that_start_one_after_the_other_have_equal_shares_after_a_few_minutes(case):
    starts, job = CASES[case]
    shares = Shares()
    together = rehearse(job, SEED, dispatchers(starts, shares.started), ideal=1.0)
    settled = shares.ratios(len(starts), starts[-1] + 180.0, 0.8 * together.makespan_s)
    assert len(settled) >= 5
    assert sum(settled) / len(settled) <= 1.5, settled
    alone = rehearse(job, SEED, dispatcher, ideal=1.0)
    assert together.failed == alone.failed == 0
    assert together.rows_per_s >= 0.95 * alone.rows_per_s


@pytest.mark.parametrize("name", ["equal", "mixed"])
def test_four_nodes_are_done_with_a_job_as_soon_as_one(name):
    speeds = {"equal": (1, 1, 1, 1), "mixed": (1, 2, 4)}[name]
    groups = tuple(
        ServerGroup.model_validate(
            {
                **USUAL,
                "name": f"s{number}",
                "count": 1,
                "tokens_per_s": 2000 * speed,
                "max_sequences": 64 * speed,
            }
        )
        for number, speed in enumerate(speeds)
    )
    job = Plan(fleet=groups, job=JobShape(rows=3000, output_tokens=TokenLengths(mean=200, most=2048)))
    one = rehearse(job, SEED, ideal=1.0)
    four = rehearse(job.model_copy(update={"nodes": 4}), SEED, ideal=1.0)
    assert four.nodes == 4
    assert one.makespan_s / four.makespan_s >= 0.95
    assert four.sends <= 1.02 * four.rows

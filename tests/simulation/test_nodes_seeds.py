"""Random scenarios of several nodes. A failure names its seed: `dispatcher simulate --several --seed N`."""

import subprocess
import sys

import pytest

from dispatcher.testing.simulation.nodes.making import nodes_scenario_of
from dispatcher.testing.simulation.nodes.run import run_nodes


@pytest.mark.timeout(300)
def test_every_promise_is_kept_by_several_nodes(nodes_seeds):
    broken = {
        report.seed: report.breaches
        for report in (run_nodes(nodes_scenario_of(seed)) for seed in nodes_seeds)
        if not report.passed
    }
    assert not broken, f"replay with: dispatcher simulate --several --seed {min(broken)}"


def digests(hash_seed):
    code = (
        "from dispatcher.testing.simulation.nodes.making import nodes_scenario_of\n"
        "from dispatcher.testing.simulation.nodes.run import run_nodes\n"
        "print(*(run_nodes(nodes_scenario_of(seed)).digest for seed in (0, 3, 24, 26, 39)))"
    )
    environment = {"PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True
    ).stdout


def test_a_seed_takes_the_same_course_in_every_process_with_several_nodes():
    first = digests("1")
    assert len(set(first.split())) == 5
    assert first == digests("2")

"""Random scenarios, each held to every promise. A failure names its seed: `dispatcher simulate --seed N`."""

import subprocess
import sys

import pytest

from dispatcher.testing.simulation.making import scenario_of
from dispatcher.testing.simulation.run import run_scenario


@pytest.mark.timeout(300)
def test_every_promise_is_kept(seeds):
    broken = {
        report.seed: report.breaches
        for report in (run_scenario(scenario_of(seed)) for seed in seeds)
        if not report.passed
    }
    assert not broken, f"replay with: dispatcher simulate --seed {min(broken)}"


def digests(hash_seed):
    code = (
        "from dispatcher.testing.simulation.making import scenario_of\n"
        "from dispatcher.testing.simulation.run import run_scenario\n"
        "print(*(run_scenario(scenario_of(seed)).digest for seed in (0, 6, 13, 15, 19, 23)))"
    )
    environment = {"PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True
    ).stdout


def test_a_seed_takes_the_same_course_in_every_process():
    first = digests("1")
    assert len(first.split()) == 6
    assert first == digests("2")


def test_different_seeds_take_different_courses():
    reports = [run_scenario(scenario_of(seed)) for seed in range(8)]
    assert len({report.digest for report in reports}) == 8

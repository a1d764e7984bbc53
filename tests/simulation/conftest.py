import os

CHUNK = 25
"""Seeds in one test: xdist shares tests out, and a test has a minute."""


def pytest_addoption(parser):
    parser.addoption(
        "--seeds",
        type=int,
        default=int(os.environ.get("DISPATCHER_SEEDS", "500")),
        help="how many simulated scenarios to run (default 500, or DISPATCHER_SEEDS)",
    )

    parser.addoption(
        "--nodes-seeds",
        type=int,
        default=int(os.environ.get("DISPATCHER_NODES_SEEDS", "300")),
        help="how many simulated scenarios of several nodes (default 300, or DISPATCHER_NODES_SEEDS)",
    )


def pytest_generate_tests(metafunc):
    for fixture in ("seeds", "nodes_seeds"):
        if fixture in metafunc.fixturenames:
            count = metafunc.config.getoption(f"--{fixture.replace('_', '-')}")
            chunks = [range(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK)]
            metafunc.parametrize(fixture, chunks, ids=lambda chunk: f"{chunk.start}-{chunk.stop - 1}")

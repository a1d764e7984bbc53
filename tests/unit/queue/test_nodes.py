"""What nodes tell each other, over a file; tests/e2e/postgres has it over PostgreSQL."""

from queue_nodes_contract import *  # noqa: F403  # the tests

"""The contract of `ports.Queue`, over what needs no service; tests/e2e/postgres has it over PostgreSQL."""

from queue_contract import *  # noqa: F403  # the tests

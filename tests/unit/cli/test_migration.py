"""`dispatcher migrate` where there is nothing that it could migrate. tests/e2e/postgres migrates."""

import pytest

from dispatcher.cli.exits import Exit
from dispatcher.cli.migration import Wanted, migrate_with
from dispatcher.config import load_config

MIGRATE = Wanted(check=False, sql=False, grant_to=None)


URL = "postgresql://me:p4ss@127.0.0.1:1/queue"
"""Nobody listens there."""


def migrate(url, wanted=MIGRATE):
    return migrate_with(load_config(None, {"queue": {"url": url}}, {}), wanted)


def test_without_a_url_there_is_nothing_to_migrate(capsys):
    assert migrate(None) is Exit.USAGE
    assert "queue.url: is not set; an embedded queue needs no migration" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wanted", [Wanted(check=True, sql=True, grant_to=None), Wanted(check=True, sql=False, grant_to="me")]
)
def test_a_look_changes_and_prints_nothing_else(capsys, wanted):
    assert migrate(URL, wanted) is Exit.USAGE
    assert "--check: changes nothing: it takes neither --sql nor --grant-to" in capsys.readouterr().err


def test_a_database_that_is_not_reached_is_named_without_its_password(capsys):
    assert migrate(URL) is Exit.USAGE
    told = capsys.readouterr()
    assert "postgresql://me@127.0.0.1:1/queue: it cannot be reached" in told.err
    assert "p4ss" not in told.out + told.err

"""What PostgreSQL's failures mean, told apart by code and type. tests/e2e/postgres meets the real ones."""

import asyncpg
import pytest
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as BusyError

from dispatcher.errors import QueueError, QueueUnreachableError, StorageError
from dispatcher.model import JobId
from dispatcher.queue.listening import read_news
from dispatcher.queue.postgresql_faults import fault
from dispatcher.queue.transactions import WORK, News, Topic

NAME = "postgresql://me@h/queue"


def of_the_server(kind, code, message="words of the server's"):
    """As SQLAlchemy gives it: its own error, around the dialect's, which was raised from the driver's."""
    driver = asyncpg.PostgresError.new({"C": code, "M": message})
    dialect = RuntimeError("of the dialect")
    dialect.__cause__ = driver
    return kind("SELECT secrets", {}, dialect)


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        ("28P01", QueueError, "it refuses the user or the password"),
        ("3D000", QueueError, "there is no such database"),
        ("42501", QueueError, "--grant-to USER"),
        ("42P01", QueueError, "run `dispatcher migrate`"),
        ("25006", QueueUnreachableError, "target_session_attrs=read-write"),
        ("53100", StorageError, "no space is left on its disk"),
        ("53300", QueueUnreachableError, "max_connections"),
        ("53200", QueueUnreachableError, "short of memory"),
        ("40P01", QueueError, "another transaction was in the way"),
        ("23505", QueueError, "a row that is there already"),
        ("23514", QueueError, "out of bounds"),
        ("57P01", QueueUnreachableError, "being stopped or started"),
        ("57P03", QueueUnreachableError, "being stopped or started"),
        ("08006", QueueUnreachableError, "the connection broke"),
        ("25P03", QueueUnreachableError, "stood still for too long"),
        ("XX001", QueueError, "it is damaged"),
        ("99999", QueueError, "it failed"),
    ],
)
def test_a_code_is_an_error_of_ours_with_advice_and_the_servers_words(code, kind, said):
    error = fault(of_the_server(DBAPIError, code), NAME)
    assert type(error) is kind
    assert str(error).startswith(f"the queue's database {NAME}: ")
    assert said in str(error)
    assert str(error).endswith(f"({code}: words of the server's)")
    assert "SELECT" not in str(error)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "it cannot be reached"),
        (TimeoutError(), "it cannot be reached"),
        (BusyError("QueuePool limit"), "the transactions before take too long"),
        (OperationalError("SELECT", {}, OSError(), connection_invalidated=True), "the connection broke"),
    ],
)
def test_a_database_that_is_not_there_may_be_there_later(error, said):
    translated = fault(error, NAME)
    assert type(translated) is QueueUnreachableError
    assert said in str(translated)


def test_a_defect_of_the_drivers_is_named_by_its_type_alone():
    error = fault(DBAPIError("SELECT", {}, ValueError("of p4ssword")), NAME)
    assert (type(error), str(error)) == (
        QueueError,
        f"the queue's database {NAME}: the driver failed (ValueError)",
    )


@pytest.mark.parametrize(
    ("payload", "news"),
    [
        ("work:", WORK),
        ("job:batch_1", News(Topic.JOB, JobId("batch_1"))),
        ("members:", News(Topic.MEMBERS)),
        ("weather:fine", None),
        ("", None),
    ],
)
def test_an_announcement_is_read_and_one_of_a_newer_dispatchers_is_none(payload, news):
    assert read_news(payload) == news

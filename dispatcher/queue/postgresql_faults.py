"""What a failure of PostgreSQL means for whoever runs the dispatcher. Told apart by SQLSTATE and type.

No text of the driver's own is repeated where it could hold a piece of the URL, which has the password.
"""

import asyncio
from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as BusyError

from dispatcher.errors import DispatcherError, QueueError, QueueUnreachableError, StorageError

_MIGRATE = "let the schema's owner run `dispatcher migrate`"
_FAULTS: dict[str, tuple[type[DispatcherError], str]] = {
    "28000": (QueueError, "it does not let this user in from here. Check queue.url and pg_hba.conf"),
    "28P01": (QueueError, "it refuses the user or the password. Check queue.url"),
    "3D000": (QueueError, "there is no such database. Make it with createdb, or correct queue.url"),
    "42501": (
        QueueError,
        "its user may not do that. Let the schema's owner run `dispatcher migrate --grant-to USER`",
    ),
    "42P01": (QueueError, f"its tables are not there: {_MIGRATE}"),
    "42703": (QueueError, f"its tables are of another version: {_MIGRATE}"),
    "42704": (QueueError, "it does not know an option of queue.url. Correct what stands after its `?`"),
    "25006": (
        QueueUnreachableError,
        "it is a standby. Name all hosts in queue.url, with ?target_session_attrs=read-write",
    ),
    "53100": (StorageError, "no space is left on its disk. Free some: nothing that was recorded is lost"),
    "53300": (
        QueueUnreachableError,
        "it has no connection left. Raise its max_connections: each node takes up to 6",
    ),
    "40001": (QueueError, "another transaction was in the way. Try again"),
    "40P01": (QueueError, "another transaction was in the way. Try again"),
    "55P03": (QueueError, "another transaction was in the way for too long. Try again"),
    "57014": (QueueError, "the statement took too long, and was ended"),
    "0A000": (QueueError, "its tables were changed under a prepared statement. Try again"),
    "23505": (QueueError, "it refused a row that is there already"),
}
"""By code, https://www.postgresql.org/docs/current/errcodes-appendix.html."""

_CLASSES: dict[str, tuple[type[DispatcherError], str]] = {
    "08": (QueueUnreachableError, "the connection broke. It is tried again"),
    "22": (QueueError, "it refused a value, such as text with a NUL character"),
    "23": (QueueError, "it refused a row that is there already, or is out of bounds"),
    "25": (QueueUnreachableError, "it ended a transaction that stood still for too long. It is tried again"),
    "53": (QueueUnreachableError, "it is short of memory or connections"),
    "57": (QueueUnreachableError, "it is being stopped or started. It is tried again"),
    "58": (StorageError, "its disk failed. See the database's own log"),
    "XX": (QueueError, "it is damaged, or has a defect. See the database's own log"),
}
"""By the code's class, where the code is not listed."""

_NOT_REACHED = "it cannot be reached. Check that it runs, queue.url, and what lies between"
_BROKE = "the connection broke. It is tried again"
_BUSY = "the transactions before take too long"

FAILURES = (DBAPIError, BusyError, OSError, asyncio.TimeoutError)
"""What a transaction can fail with, of the driver's and SQLAlchemy's."""


def fault(error: BaseException, name: str) -> DispatcherError:
    """One of `FAILURES` as an error of ours. `name` is the database's, without a password."""
    kind, advice, detail = _told(error)
    return kind(f"the queue's database {name}: {advice}{detail}")


def _told(error: BaseException) -> tuple[type[DispatcherError], str, str]:
    if isinstance(error, BusyError):
        return QueueUnreachableError, _BUSY, ""
    code, message = next(_states(error), ("", ""))
    if code:
        kind, advice = _FAULTS.get(code) or _CLASSES.get(code[:2]) or (QueueError, "it failed")
        return kind, advice, f" ({code}: {message})" if message else f" ({code})"
    if isinstance(error, DBAPIError):
        if error.connection_invalidated:
            return QueueUnreachableError, _BROKE, ""
        return QueueError, "the driver failed", f" ({type(error.orig).__name__})"
    reason = getattr(error, "strerror", None) or type(error).__name__
    return QueueUnreachableError, _NOT_REACHED, f" ({reason})"


def _states(error: BaseException | None) -> Iterator[tuple[str, str]]:
    """The SQLSTATEs, with the server's words, of an error and of what it was raised from."""
    while error is not None:
        state = getattr(error, "sqlstate", None)
        if isinstance(state, str) and state:
            yield state, str(getattr(error, "message", None) or "")
        error = error.orig if isinstance(error, DBAPIError) else error.__cause__

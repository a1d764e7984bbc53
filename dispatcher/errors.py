"""Every error a user can meet. Each message says what is wrong, where, and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class DispatcherError(Exception):
    """The base of all errors that this package raises on purpose."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a user's input or configuration: where it stands, and what would be right."""

    where: str
    message: str
    line: int | None = field(default=None, compare=False, repr=False)
    """The line of an input file, from 1; None where it is not about one."""
    code: str | None = field(default=None, compare=False, repr=False)
    """What is wrong there, for programs: a `LineCode`'s value."""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class ConfigError(DispatcherError):
    """The configuration is wrong. Holds every fault that was found, not only the first."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


class InputError(DispatcherError):
    """The input file cannot be run. Holds the first faults, by line, and how many there are in all."""

    def __init__(self, message: str, faults: tuple[Fault, ...] = (), fault_count: int = 0) -> None:
        listed = "".join(f"\n  {fault}" for fault in faults)
        more = f"\n  ... and {fault_count - len(faults)} more" if fault_count > len(faults) else ""
        super().__init__(f"{message}{listed}{more}")
        self.faults = faults
        self.fault_count = fault_count


class StateError(DispatcherError):
    """The state directory cannot be used: live elsewhere, of another input, or of another version."""


class StorageError(DispatcherError):
    """Bytes could not be read or written: no space, no permission, no such place."""


class MissingError(StorageError):
    """There is nothing under this name."""


class TakenError(StorageError):
    """Another has written there: something is there already, or is no longer what was meant."""


class UnavailableError(StorageError):
    """The store does not answer, or says that it cannot just now: the same may succeed later."""


class QueueError(DispatcherError):
    """The work queue's database failed or refused."""


class QueueUnreachableError(QueueError):
    """The work queue's database cannot be used just now, and may be later. The queue itself logs it, once."""


class LeaseLostError(QueueError):
    """A lease was taken over by another node: its outcomes here must not be settled."""


class CustodyLostError(QueueError):
    """Another node drives the job now: what this one still meant to do with it must not be done."""


class JobMovedError(QueueError):
    """A job is no longer as it was when this was decided: another node has moved it meanwhile."""


class ServersUnavailableError(DispatcherError):
    """No server became usable within the time that the user allowed."""


class WorkerError(DispatcherError):
    """A worker process of a run ended again and again, or could not be started."""


class RequestFailedError(DispatcherError):
    """A client's request has no answer. `code` is an `ErrorCode`'s value, as in a job's error file."""

    def __init__(
        self,
        message: str,
        code: str,
        *,
        status: int | None = None,
        request_id: str | None = None,
        server: str | None = None,
        attempts: int = 0,
    ) -> None:
        super().__init__(message, code)  # what pickle makes it of again; the rest it copies
        self.message = message
        self.code = code
        self.status = status
        """The last answer's HTTP status; None where there was no answer."""
        self.request_id = request_id
        self.server = server
        self.attempts = attempts
        """Sends that were made."""

    def __str__(self) -> str:
        where = "" if self.server is None else f" at {self.server}"
        return f"{self.code}{where}: {self.message}"


class ConstraintIgnoredError(DispatcherError):
    """A constraint on an answer would have no effect on this server, or has had none."""


class StoppedError(DispatcherError):
    """The user asked to stop; nothing is lost, and the same command goes on."""


class IllegalTransitionError(AssertionError):
    """A server was asked to make a move that its state machine does not have: a defect of ours."""


@contextmanager
def ungrouped() -> Iterator[None]:
    """Raise what ended the tasks within as it is, where it is ours; anything else stays a group.

    `except*` does the same from Python 3.11.4 on; before, it raises a group from a handler, too.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        if group.split(DispatcherError)[1] is not None:
            raise
        raise first_of(group) from group


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of the errors that ended tasks together, the one that came first."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

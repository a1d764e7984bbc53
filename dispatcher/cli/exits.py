"""Exit codes, and how an error reaches the user."""

import sys
from enum import IntEnum

from dispatcher.errors import (
    DispatcherError,
    QueueError,
    ServersUnavailableError,
    StoppedError,
    StorageError,
    WorkerError,
)


class Exit(IntEnum):
    """What the command's exit status says."""

    DONE = 0  # all rows succeeded
    FAILED_ROWS = 1  # finished, with failed rows
    USAGE = 2  # nothing was done: usage, configuration, input or state
    RESUMABLE = 3  # stopped early; the same command goes on


RESUMABLE_ERRORS = (StoppedError, ServersUnavailableError, StorageError, QueueError, WorkerError)


def exit_for(error: DispatcherError) -> Exit:
    """The exit status for an error that ended a command."""
    return Exit.RESUMABLE if isinstance(error, RESUMABLE_ERRORS) else Exit.USAGE


def tell(error: DispatcherError) -> None:
    """Say what is wrong, on standard error."""
    sys.stderr.write(f"dispatcher: {error}\n")

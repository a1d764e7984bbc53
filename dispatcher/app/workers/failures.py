"""Errors of a worker as the run raises them."""

from types import MappingProxyType
from typing import Final

from dispatcher.errors import (
    DispatcherError,
    QueueError,
    ServersUnavailableError,
    StorageError,
    WorkerError,
)

_KINDS: Final = MappingProxyType(
    {kind.__name__: kind for kind in (QueueError, ServersUnavailableError, StorageError)}
)


def failure(kind: str, message: str) -> DispatcherError:
    """The error that a worker told of, by its class's name.

    What else it may be, a changed prompt say, has come up in the middle of the run: the same command goes on.
    """
    return _KINDS.get(kind, WorkerError)(message)

"""Errors of a worker as the run raises them."""

from types import MappingProxyType
from typing import Final

from dispatcher.errors import (
    DispatcherError,
    InputError,
    QueueError,
    ServersUnavailableError,
    StateError,
    StorageError,
    WorkerError,
)

_KINDS: Final = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (InputError, QueueError, ServersUnavailableError, StateError, StorageError)
    }
)


def failure(kind: str, message: str) -> DispatcherError:
    """The error that a worker told of, by its class's name."""
    return _KINDS.get(kind, WorkerError)(message)

"""A work-queue dispatcher for fleets of vLLM servers."""

from dispatcher.errors import (
    ConfigError,
    DispatcherError,
    InputError,
    ServersUnavailableError,
    StateError,
    StorageError,
)
from dispatcher.library import BlockingDispatcher, Dispatcher
from dispatcher.model import ErrorCode, Outcome, Provenance, Tokens

__all__ = [
    "BlockingDispatcher",
    "ConfigError",
    "Dispatcher",
    "DispatcherError",
    "ErrorCode",
    "InputError",
    "Outcome",
    "Provenance",
    "ServersUnavailableError",
    "StateError",
    "StorageError",
    "Tokens",
]

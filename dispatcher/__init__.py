"""A work-queue dispatcher for fleets of vLLM servers."""

import importlib
from typing import TYPE_CHECKING, Any

from dispatcher.errors import (
    ConfigError,
    DispatcherError,
    InputError,
    ServersUnavailableError,
    StateError,
    StorageError,
)
from dispatcher.model import ErrorCode, Outcome, Provenance, Tokens

if TYPE_CHECKING:
    from dispatcher.library import BlockingDispatcher, Dispatcher

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


def __getattr__(name: str) -> Any:
    """The two that need everything are imported when asked for: the command line must not wait for them."""
    if name in ("BlockingDispatcher", "Dispatcher"):
        return getattr(importlib.import_module("dispatcher.library"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

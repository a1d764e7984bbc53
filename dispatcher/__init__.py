"""A work-queue dispatcher for fleets of vLLM servers."""

import importlib
from typing import TYPE_CHECKING, Any

from dispatcher.errors import (
    ConfigError,
    ConstraintIgnoredError,
    DispatcherError,
    InputError,
    RequestFailedError,
    ServersUnavailableError,
    StateError,
    StorageError,
)
from dispatcher.model import ErrorCode, Outcome, Provenance, Tokens

if TYPE_CHECKING:
    from dispatcher.library import BlockingDispatcher, Dispatcher
    from dispatcher.vllm.client import AsyncVLLMClient, GenerationOptions, VLLMClient

__all__ = [
    "AsyncVLLMClient",
    "BlockingDispatcher",
    "ConfigError",
    "ConstraintIgnoredError",
    "Dispatcher",
    "DispatcherError",
    "ErrorCode",
    "GenerationOptions",
    "InputError",
    "Outcome",
    "Provenance",
    "RequestFailedError",
    "ServersUnavailableError",
    "StateError",
    "StorageError",
    "Tokens",
    "VLLMClient",
]

_LATE = {
    "AsyncVLLMClient": "dispatcher.vllm.client",
    "BlockingDispatcher": "dispatcher.library",
    "Dispatcher": "dispatcher.library",
    "GenerationOptions": "dispatcher.vllm.client",
    "VLLMClient": "dispatcher.vllm.client",
}
"""What needs much is imported when it is asked for: the command line must not wait for it."""


def __getattr__(name: str) -> Any:
    """Import what is asked for by name, if it is one of the late ones."""
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

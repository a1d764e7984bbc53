"""What a conversation is, and how it is written down for a server. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dispatcher.errors import InputError

Messages = str | Sequence[Mapping[str, Any]]
"""Messages as OpenAI has them (`role`, `content`, ...), or one text, which stands for a user's message."""


def conversation(messages: Messages) -> list[Mapping[str, Any]]:
    """The list of messages. Raises InputError where it is none."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    found = list(messages)
    for position, message in enumerate(found):
        if not _is_message(message):
            raise InputError(f"messages[{position}] must be a mapping with a role")
    if not found:
        raise InputError("messages must hold at least one")
    return found


def _is_message(message: object) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("role"), str)


def encode(body: Mapping[str, Any]) -> bytes:
    """A body as JSON. Raises InputError for what JSON has not, a lone surrogate say."""
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InputError(f"the request cannot be written as JSON: {error}") from error

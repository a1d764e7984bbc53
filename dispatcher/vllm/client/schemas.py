"""JSON schemas for answers, of whatever a user has to describe them with. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from pydantic import BaseModel, PydanticUserError

NAME_CHARACTERS_MAX: Final = 64
"""OpenAI's limit on a schema's name: letters, digits, `_` and `-`."""


def is_schema(schema: object) -> bool:
    """Whether a JSON schema is there, or can be made."""
    try:
        return bool(json_schema_of(schema))
    except (TypeError, ValueError, RuntimeError, PydanticUserError):
        return False


def json_schema_of(schema: Any) -> dict[str, Any]:
    """A JSON schema of a mapping (itself), a pydantic model, or a type that msgspec has a schema for.

    Raises TypeError, and what pydantic raises, for anything else.
    """
    if isinstance(schema, Mapping):
        return dict(schema)
    if not isinstance(schema, type):
        raise TypeError("a schema is a mapping or a type")
    if issubclass(schema, BaseModel):
        return schema.model_json_schema()
    return _rooted(msgspec.json.schema(schema))


def response_format(schema: Any) -> dict[str, Any]:
    """The `response_format` of OpenAI's API that vLLM constrains answers by."""
    made = json_schema_of(schema)
    name = getattr(schema, "__name__", None) or str(made.get("title") or "answer")
    named = {"name": _plain(name), "schema": made, "strict": True}
    return {"type": "json_schema", "json_schema": named}


def _rooted(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose outermost type, which msgspec puts under `$defs`, is in its place again."""
    definitions = schema.get("$defs", {})
    reference = schema.get("$ref", "")
    root = definitions.get(reference.removeprefix("#/$defs/"))
    return schema if root is None else {**root, "$defs": definitions}


def _plain(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", name)[:NAME_CHARACTERS_MAX]

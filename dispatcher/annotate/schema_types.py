"""The column type of what a JSON schema admits. What has no single type is kept as JSON text."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

_SCALARS: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}


def arrow_type(schema: Any) -> pa.DataType:
    """The type of a property. Arrays of scalars are lists; objects, and all else, JSON text."""
    if not isinstance(schema, Mapping):
        return pa.string()
    if "enum" in schema or "const" in schema:
        return _type_of_values(schema.get("enum", [schema.get("const")]))
    kinds = _kinds(schema)
    if len(kinds) != 1:
        return pa.string()
    (kind,) = kinds
    if kind == "array":
        item = arrow_type(schema.get("items"))
        scalar = isinstance(schema.get("items"), Mapping) and _kinds(schema["items"]) <= _SCALARS.keys()
        return pa.list_(item) if scalar and _single(schema["items"]) else pa.string()
    return _SCALARS.get(kind, pa.string())


def _single(schema: Mapping[str, Any]) -> bool:
    return "enum" in schema or len(_kinds(schema)) == 1


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """The types that a schema names itself, without null."""
    named = schema.get("type", ())
    return {named} - {"null"} if isinstance(named, str) else set(named) - {"null"}


def _type_of_values(values: Any) -> pa.DataType:
    kinds = {type(value) for value in values} - {type(None)}
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return _SCALARS[names[kinds.pop()]] if len(kinds) == 1 and kinds <= names.keys() else pa.string()

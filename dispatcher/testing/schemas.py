"""Values that satisfy a JSON schema, for the fake's structured outputs.

The everyday part of JSON Schema is understood: types, properties, items, enum, const, bounds, pattern, `$ref`
into the schema itself, anyOf, oneOf and allOf. An unknown keyword is ignored, as vLLM's own back ends do.
"""

from collections.abc import Mapping
from random import Random
from typing import Any

from dispatcher.testing.patterns import sample_pattern

Schema = Mapping[str, Any]

_DEPTH_MAX = 8  # below it, optional parts are left out, so that recursive schemas end
_DEPTH_LIMIT = 64
_SPAN = 100  # how far an unbounded number may lie from its bound
_WORDS = ("ash", "bay", "elm", "fig", "oak", "pea", "rye", "yew")
_FORMATS = {
    "date": "2025-01-31",
    "date-time": "2025-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "ash@example.org",
    "uri": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


class UnsupportedSchemaError(ValueError):
    """The schema is not one, or admits nothing that can be written down."""


def sample_schema(schema: Schema, random: Random) -> Any:
    """A value that the schema admits. Raises UnsupportedSchemaError or UnsupportedPatternError."""
    return _SchemaSampler(schema, random).value(schema, 0)


class _SchemaSampler:
    def __init__(self, root: Schema, random: Random) -> None:
        self._root = root
        self._random = random

    def value(self, schema: Any, depth: int) -> Any:
        if schema is True:
            return self._random.choice(_WORDS)
        if not isinstance(schema, Mapping) or depth > _DEPTH_LIMIT:
            raise UnsupportedSchemaError("not a schema, or one without an end")
        schema = self._resolved(schema, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._random.choice(schema["enum"])
        return self._typed(schema, depth)

    def _resolved(self, schema: Schema, depth: int) -> Schema:
        """The schema with references, alternatives and conjunctions folded in."""
        for _ in range(_DEPTH_LIMIT):
            if "$ref" in schema:
                schema = {**_without(schema, "$ref"), **self._referenced(schema["$ref"])}
            elif alternatives := schema.get("anyOf") or schema.get("oneOf"):
                shallow = [option for option in alternatives if "$ref" not in option] or alternatives
                chosen = self._random.choice(shallow if depth > _DEPTH_MAX else alternatives)
                schema = {**_without(schema, "anyOf", "oneOf"), **chosen}
            elif parts := schema.get("allOf"):
                schema = _conjunction(
                    [_without(schema, "allOf"), *(self._resolved(part, depth) for part in parts)]
                )
            else:
                return schema
        raise UnsupportedSchemaError("a reference that leads back to itself")

    def _referenced(self, reference: str) -> Schema:
        target: Any = self._root
        try:
            for key in reference.removeprefix("#").strip("/").split("/"):
                target = target[key] if key else target
        except (KeyError, TypeError) as exc:
            raise UnsupportedSchemaError(f"unresolved reference {reference}") from exc
        found: Schema = target
        return found

    def _typed(self, schema: Schema, depth: int) -> Any:
        match self._type(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case other:
                return self._scalar(other, schema)

    def _scalar(self, kind: str, schema: Schema) -> float | bool | None:
        match kind:
            case "integer":
                return self._integer(schema)
            case "number":
                return self._number(schema)
            case "boolean":
                return self._random.choice((False, True))
            case "null":
                return None
            case _:
                raise UnsupportedSchemaError(f"unknown type {kind!r}")

    def _type(self, schema: Schema) -> str:
        declared = schema.get("type")
        if isinstance(declared, list):
            return str(self._random.choice(declared))
        if declared is not None:
            return str(declared)
        if "items" in schema:
            return "array"
        return "object" if "properties" in schema else "string"

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties: Schema = schema.get("properties", {})
        required = schema.get("required", ())
        kept = [key for key in properties if depth < _DEPTH_MAX or key in required]
        missing = [key for key in required if key not in properties]
        named = {key: self.value(properties[key], depth + 1) for key in kept}
        return named | {key: self._random.choice(_WORDS) for key in missing}

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        low = schema.get("minItems", 0)
        high = min(schema.get("maxItems", low + 2), low + 2)
        least = low if depth >= _DEPTH_MAX else min(max(low, 1), high)
        prefix = schema.get("prefixItems", ())
        length = max(len(prefix), self._random.randint(least, high if depth < _DEPTH_MAX else least))
        items = [*prefix, *[schema.get("items", True)] * (length - len(prefix))]
        return [self.value(item, depth + 1) for item in items]

    def _string(self, schema: Schema) -> str:
        if "pattern" in schema:
            return sample_pattern(str(schema["pattern"]), self._random)
        if (known := _FORMATS.get(schema.get("format", ""))) is not None:
            return known
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        text: str = self._random.choice(_WORDS)
        text = (text * (low // len(text) + 1))[: max(low, len(text))]
        return text if high is None else text[: int(high)]

    def _integer(self, schema: Schema) -> int:
        step = int(schema.get("multipleOf", 1)) or 1
        low, high = _bounds(schema, step)
        first, last = -int(-low // step), int(high // step)
        if first > last:
            raise UnsupportedSchemaError("no integer lies within the bounds")
        return self._random.randint(first, last) * step

    def _number(self, schema: Schema) -> float:
        low, high = _bounds(schema, 1e-6)
        return min(max(round(self._random.uniform(low, high), 3), low), high)


def _bounds(schema: Schema, step: float) -> tuple[float, float]:
    low = schema.get("minimum", schema["exclusiveMinimum"] + step if "exclusiveMinimum" in schema else None)
    high = schema.get("maximum", schema["exclusiveMaximum"] - step if "exclusiveMaximum" in schema else None)
    if low is None:
        low = 0 if high is None or high >= 0 else high - _SPAN
    return low, low + _SPAN if high is None else high


def _without(schema: Schema, *keys: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in keys}


def _conjunction(schemas: list[Schema]) -> dict[str, Any]:
    """All of the schemas as one: properties and required keys add up, for the rest the last one wins."""
    merged: dict[str, Any] = {}
    for schema in schemas:
        properties = {**merged.get("properties", {}), **schema.get("properties", {})}
        required = [*merged.get("required", ()), *schema.get("required", ())]
        merged |= schema
        merged |= {"properties": properties} if properties else {}
        merged |= {"required": required} if required else {}
    return merged

import re
from random import Random

import pytest

from dispatcher.testing.patterns import UnsupportedPatternError
from dispatcher.testing.schemas import UnsupportedSchemaError, sample_schema

SEEDS = range(20)


def samples(schema):
    return [sample_schema(schema, Random(seed)) for seed in SEEDS]


def test_an_object_has_all_its_properties_and_required_keys():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]}
    assert all(value.keys() == {"a", "b"} and type(value["a"]) is int for value in samples(schema))


def test_enums_constants_and_type_lists_are_kept_to():
    assert {*samples({"enum": ["x", "y"]})} == {"x", "y"}
    assert {*samples({"const": 7})} == {7}
    assert {type(value) for value in samples({"type": ["boolean", "null"]})} == {bool, type(None)}


def test_numbers_stay_within_their_bounds():
    assert all(3 <= value <= 5 for value in samples({"type": "integer", "minimum": 3, "maximum": 5}))
    assert {*samples({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5})} == {4}
    assert all(value % 5 == 0 for value in samples({"type": "integer", "multipleOf": 5}))
    assert all(value <= -2 for value in samples({"type": "number", "maximum": -2}))
    assert all(0 <= value <= 1 for value in samples({"type": "number", "minimum": 0, "maximum": 1}))


def test_strings_keep_their_length_pattern_and_format():
    assert all(len(value) == 40 for value in samples({"type": "string", "minLength": 40, "maxLength": 40}))
    assert all(len(value) <= 2 for value in samples({"type": "string", "maxLength": 2}))
    assert all(
        re.fullmatch(r"[A-C]\d", value) for value in samples({"type": "string", "pattern": r"[A-C]\d"})
    )
    assert samples({"type": "string", "format": "date"})[0] == "2025-01-31"


@pytest.mark.parametrize(("low", "high"), [(0, 0), (2, 2), (4, 20), (0, 1)])
def test_arrays_keep_their_length(low, high):
    schema = {"type": "array", "items": {"type": "null"}, "minItems": low, "maxItems": high}
    assert all(low <= len(value) <= high and set(value) <= {None} for value in samples(schema))


def test_references_alternatives_and_conjunctions_are_followed():
    schema = {
        "$defs": {"label": {"enum": ["p", "n"]}, "named": {"properties": {"name": {"const": "x"}}}},
        "allOf": [
            {"type": "object", "properties": {"label": {"$ref": "#/$defs/label"}}},
            {"$ref": "#/$defs/named"},
        ],
    }
    assert all(value["label"] in {"p", "n"} and value["name"] == "x" for value in samples(schema))
    assert {*samples({"anyOf": [{"const": 1}, {"const": 2}]})} == {1, 2}


def test_a_recursive_schema_comes_to_an_end():
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
    tree = {"type": "array", "items": {"$ref": "#/$defs/tree"}}
    for value in samples({"$defs": {"node": node}, "$ref": "#/$defs/node"}):
        assert "next" in value
    assert samples({"$defs": {"tree": tree}, "$ref": "#/$defs/tree"})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "thing"},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "array", "items": False},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    ],
)
def test_what_admits_nothing_is_refused(schema):
    with pytest.raises(UnsupportedSchemaError):
        sample_schema(schema, Random(0))


def test_a_bad_pattern_inside_a_schema_is_refused():
    with pytest.raises(UnsupportedPatternError):
        sample_schema({"type": "string", "pattern": "("}, Random(0))

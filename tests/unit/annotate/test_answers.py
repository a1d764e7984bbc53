"""Answers read, checked and typed; and what is asked instead of those that will not do."""

import json

import pyarrow as pa
import pytest

from dispatcher.annotate.answers import FreeText, Label, Structured, UnusableAnswerError, read_body
from dispatcher.annotate.confidence import LabelWithConfidence
from dispatcher.annotate.review import AnswerReview, revised
from dispatcher.annotate.schema_types import arrow_type
from dispatcher.model import AgainReason, Judgement, Request, Tokens, Verdict
from dispatcher.ports import Asked


def body(content, finish_reason="stop", **message):
    choice = {"message": {"content": content, **message}, "finish_reason": finish_reason}
    return json.dumps({"choices": [choice]}).encode()


def request(**members):
    return Request(0, "0", "/v1/chat/completions", None, json.dumps({"messages": [], **members}).encode())


def sent(changed):
    return {name: value for name, value in json.loads(changed.body).items() if name != "messages"}


@pytest.mark.parametrize(
    ("kind", "content", "cut", "said"),
    [
        (FreeText(), "", False, "empty"),
        (FreeText(), " \n", False, "empty"),
        (FreeText(), "half a", True, "cut"),
        (Label(["yes", "no"]), "maybe", False, "not one of the labels: 'maybe'"),
        (Label(["yes", "no"]), "ye", True, "cut"),
        (Label(["yes", "no"]), "", False, "not one of the labels: empty"),
        (Structured({"type": "object"}), "{", False, "not JSON"),
        (Structured({"type": "object"}), "{", True, "cut"),
        (Structured({"type": "object"}), "[]", False, "not valid by the schema"),
        (
            Structured({"type": "object", "properties": {"n": {"type": "integer"}}}),
            json.dumps({"n": 10**30}),
            False,
            "does not fit its column",
        ),
    ],
)
def test_an_answer_of_no_use_is_told(kind, content, cut, said):
    with pytest.raises(UnusableAnswerError, match=said):
        kind.read(content, cut=cut)


@pytest.mark.parametrize("cut", [False, True])
def test_a_whole_label_counts_even_where_it_took_all_tokens(cut):
    assert Label(["yes", "no"]).read(" yes\n", cut=cut) == {"": "yes"}


def test_values_are_fitted_to_their_columns():
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "x": {"type": ["number", "null"]},
            "any": {},
            "more": {"type": "object"},
            "missing": {"type": "string"},
        },
    }
    answer = {"n": 3.0, "x": None, "any": [1, "a"], "more": {"a": None}, "extra": 1}
    values = Structured(schema).read(json.dumps(answer), cut=False)
    assert values == {"n": 3, "x": None, "any": '[1,"a"]', "more": '{"a":null}', "missing": None}


def test_a_schema_that_is_no_object_has_one_column():
    kind = Structured({"type": "array", "items": {"type": "integer"}})
    assert [(field.name, field.type) for field in kind.columns] == [("", pa.list_(pa.int64()))]
    assert kind.read("[1, 2]", cut=False) == {"": [1, 2]}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, pa.string()),
        ({"type": ["null", "boolean"]}, pa.bool_()),
        ({"enum": [1, 2]}, pa.int64()),
        ({"enum": ["a", 1]}, pa.string()),
        ({"const": "a"}, pa.string()),
        ({"type": "array", "items": {"type": "number"}}, pa.list_(pa.float64())),
        ({"type": "array"}, pa.string()),
        ({"type": "array", "items": {"type": "object"}}, pa.string()),
        ({"type": ["integer", "string"]}, pa.string()),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, pa.string()),
        (True, pa.string()),
    ],
)
def test_a_schemas_type(schema, kind):
    assert arrow_type(schema) == kind


@pytest.mark.parametrize(
    ("answer", "content", "reasoning"),
    [
        (body("a"), "a", None),
        (body("a", reasoning="r"), "a", "r"),
        (body("a", reasoning_content="r"), "a", "r"),
        (body("<think>\nr\n</think>\n\na"), "a", "r"),
        (body("a <think>b</think>"), "a <think>b</think>", None),
        (body("<think>half a", "length"), "", "half a"),
        (body("b", reasoning="r", reasoning_content="other"), "b", "r"),
        (body(None), "", None),
    ],
)
def test_thoughts_are_told_from_the_answer(answer, content, reasoning):
    reading = read_body(answer)
    assert (reading.content, reading.reasoning) == (content, reasoning)


def judged(answer):
    return Judgement(Verdict.SUCCESS, body=answer)


def test_a_good_answer_counts():
    assert AnswerReview(FreeText(), 3)(request(), judged(body("a")), Asked()) is None


def test_a_bad_answer_is_asked_for_again_until_it_was_asked_often_enough():
    review = AnswerReview(FreeText(), 2)
    found = [review(request(), judged(body("")), Asked(times)) for times in range(3)]
    assert [each.again is not None for each in found] == [True, True, False]
    assert {(each.message, each.reason) for each in found} == {("the answer is empty", AgainReason.EMPTY)}


@pytest.mark.parametrize(
    ("max_tokens", "context_tokens", "then"),
    [(8, None, 16), (8, 100, 16), (8, 22, 12), (8, 12, 8), (8, 5, 8)],
)
def test_what_was_cut_gets_twice_the_tokens_but_no_more_than_the_model_s_context_has(
    max_tokens, context_tokens, then
):
    answer = Judgement(Verdict.SUCCESS, body=body("half", "length"), tokens=Tokens(10, 8))
    found = AnswerReview(FreeText(), 1)(
        request(max_tokens=max_tokens), answer, Asked(context_tokens=context_tokens)
    )
    assert found.reason is AgainReason.CUT
    assert sent(found.again)["max_tokens"] == then


@pytest.mark.parametrize(
    ("members", "asked", "cut", "then"),
    [
        ({}, 1, False, {"seed": 1}),
        ({"seed": 7}, 1, False, {"seed": 8}),
        ({"temperature": 0}, 1, False, {"seed": 1, "temperature": 0.3}),
        ({"temperature": 0.3, "seed": 1}, 2, False, {"seed": 2, "temperature": 0.6}),
        ({"temperature": 0.9, "seed": 3}, 4, False, {"seed": 4, "temperature": 1.2}),
        ({"temperature": 1.8, "seed": 6}, 7, False, {"seed": 7, "temperature": 2.0}),
        ({"temperature": 2.0, "seed": 9}, 10, False, {"seed": 10, "temperature": 2.0}),
        ({"temperature": 1.0}, 1, False, {"seed": 1, "temperature": 1.0}),
        ({"max_tokens": 8}, 1, True, {"seed": 1, "max_tokens": 16}),
        ({"max_tokens": 8}, 1, False, {"seed": 1, "max_tokens": 8}),
        ({}, 1, True, {"seed": 1}),
    ],
)
def test_what_is_asked_instead(members, asked, cut, then):
    changed = revised(request(**members), asked, cut=cut)
    assert sent(changed) == then
    assert (changed.index, changed.custom_id, changed.url) == (0, "0", "/v1/chat/completions")


PERSON = {
    "type": "object",
    "$defs": {"age": {"type": "integer", "minimum": 0}},
    "properties": {
        "name": {"type": "string"},
        "age": {"$ref": "#/$defs/age"},
        "mood": {"type": ["string", "null"]},
        "code": {"type": ["integer", "string"]},
        "more": {"type": "object"},
        "extra": {"type": "number"},
    },
    "required": ["name", "age", "mood", "unnamed"],
    "additionalProperties": False,
}
GOOD = {"name": "a", "age": "3", "mood": None, "code": "5", "more": '{"b":1}', "extra": None}


@pytest.mark.parametrize(
    ("kind", "values", "fault"),
    [
        (FreeText(), {"": "a"}, None),
        (FreeText(), {"": " "}, "empty"),
        (Label(["yes", "no"]), {"": "yes"}, None),
        (Label(["yes", "no"]), {"": "maybe"}, "not one of the labels: 'maybe'"),
        (Structured({"type": "array", "maxItems": 1}), {"": "[1]"}, None),
        (Structured({"type": "array", "maxItems": 1}), {"": "[1,2]"}, "not valid by the schema"),
        (Structured(PERSON), GOOD, None),
        (Structured(PERSON), {**GOOD, "age": "-3"}, "age is not valid"),
        (Structured(PERSON), {**GOOD, "name": None}, "name is missing"),
        (Structured(PERSON), {**GOOD, "more": "[]"}, "more is not valid"),
    ],
)
def test_an_answer_in_a_table_is_held_against_what_was_asked(kind, values, fault):
    found = kind.fault(values)
    assert found is None if fault is None else fault in found


SURE = {"": "yes", "probabilities": {"yes": 0.75, "no": 0.25}, "confidence": 0.75}


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, None),
        ({"": "maybe"}, "not one of the labels"),
        ({"probabilities": {"yes": 1.0}}, "no probability of each"),
        ({"probabilities": "text"}, "no probability of each"),
        ({"probabilities": {"yes": 0.75, "no": 0.5}}, "do not sum to 1"),
        ({"probabilities": {"yes": 2.0, "no": -1.0}}, "that is none"),
        ({"": "no", "confidence": 0.25}, "not the likeliest"),
        ({"confidence": 0.5}, "not the likeliest"),
    ],
)
def test_probabilities_in_a_table_are_held_against_each_other(changed, fault):
    found = LabelWithConfidence(["yes", "no"]).fault({**SURE, **changed})
    assert found is None if fault is None else fault in found

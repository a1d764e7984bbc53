"""Generation options: what they refuse, and how they are written down."""

import inspect
from dataclasses import fields
from enum import StrEnum
from typing import TypedDict

import msgspec
import pydantic
import pytest
from openai.resources.chat.completions import AsyncCompletions

from dispatcher import ConfigError, GenerationOptions
from dispatcher.vllm.client.options import TYPED

EVERY = {
    "max_completion_tokens": 7,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.2,
    "frequency_penalty": -0.2,
    "stop": ["end"],
    "stop_token_ids": [3],
    "seed": 11,
    "logprobs": True,
    "top_logprobs": 2,
    "chat_template_kwargs": {"enable_thinking": False},
    "chat_template": "{{ messages }}",
    "add_generation_prompt": True,
    "continue_final_message": False,
    "mm_processor_kwargs": {"size": 1},
    "priority": 3,
}


def faults(**options):
    with pytest.raises(ConfigError) as caught:
        GenerationOptions(**options)
    return {fault.where: fault.message for fault in caught.value.faults}


def test_every_option_is_none_at_first_and_leaves_its_field_out():
    assert all(field.default is None for field in fields(GenerationOptions))
    assert GenerationOptions().to_payload() == {}
    assert GenerationOptions().split_payload() == ({}, {})


def test_every_option_stands_in_the_payload_under_its_own_name():
    assert {field.name for field in fields(GenerationOptions)} == EVERY.keys() | {
        "output_schema",
        "extra_body",
    }
    assert GenerationOptions(**EVERY).to_payload() == EVERY


def test_the_two_parts_are_the_whole_payload_and_have_nothing_in_common():
    options = GenerationOptions(**EVERY, output_schema={"type": "object"}, extra_body={"min_tokens": 2})
    typed, rest = options.split_payload()
    assert {**typed, **rest} == options.to_payload()
    assert not typed.keys() & rest.keys()
    assert rest["min_tokens"] == 2


def test_the_first_part_is_what_the_openai_sdk_has_as_arguments():
    arguments = inspect.signature(AsyncCompletions.create).parameters.keys()
    assert arguments >= TYPED
    written = GenerationOptions(**EVERY).to_payload().keys()
    assert not (written - TYPED) & arguments


def test_a_users_extra_body_is_merged_last():
    options = GenerationOptions(temperature=0, seed=1, extra_body={"temperature": 1.5, "min_tokens": 3})
    assert options.to_payload() == {"temperature": 1.5, "seed": 1, "min_tokens": 3}
    typed, rest = options.split_payload()
    assert {**typed, **rest}["temperature"] == 1.5
    assert rest == {"temperature": 1.5, "min_tokens": 3}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_completion_tokens", [0, -1, 1.5, True, "5"]),
        ("temperature", [-0.1, 2.1, float("nan"), float("inf"), "0", False]),
        ("top_p", [0, 1.01, -1]),
        ("top_k", [-2, 1.0]),
        ("min_p", [-0.1, 1.1]),
        ("repetition_penalty", [0, -1, float("inf")]),
        ("presence_penalty", [-2.1, 2.1]),
        ("frequency_penalty", [-2.1, 2.1]),
        ("stop", ["", [""], [1], 5]),
        ("stop_token_ids", [[-1], ["1"], "12", 3]),
        ("seed", [2**63, -(2**63) - 1, 1.0]),
        ("logprobs", [1, "yes"]),
        ("chat_template_kwargs", [[], "x", {1: 2}]),
        ("chat_template", ["", 3]),
        ("add_generation_prompt", [1]),
        ("continue_final_message", [0]),
        ("mm_processor_kwargs", [[]]),
        ("priority", [1.5]),
        ("output_schema", ["{}", {}, 5, object]),
        ("extra_body", [[], "x"]),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(name, values):
    for value in values:
        assert name in faults(**{name: value}), value


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_completion_tokens", [1]),
        ("temperature", [0, 2, 0.0]),
        ("top_p", [1, 0.001]),
        ("top_k", [0, -1, 50]),
        ("min_p", [0, 1]),
        ("presence_penalty", [-2, 2]),
        ("stop", ["x", ["x", "y"], ()]),
        ("seed", [-(2**63), 2**63 - 1, 0]),
    ],
)
def test_the_bounds_of_a_range_are_taken(name, values):
    for value in values:
        assert GenerationOptions(**{name: value}).to_payload() == {name: value}


def test_every_fault_is_named_at_once():
    found = faults(temperature=3, top_p=0, top_logprobs=2, extra_body={"n": 2, "stream": True})
    assert found.keys() == {"temperature", "top_p", "top_logprobs", "extra_body.n", "extra_body.stream"}
    assert found["temperature"] == "must be a number from 0 to 2, got 3"


@pytest.mark.parametrize("name", ["n", "best_of"])
def test_more_than_one_response_is_refused_wherever_it_is_asked_for(name):
    assert f"extra_body.{name}" in faults(extra_body={name: 2})
    with pytest.raises(TypeError, match=name):
        GenerationOptions(**{name: 2})
    assert GenerationOptions(extra_body={name: 1}).to_payload() == {name: 1}


def test_an_extra_body_cannot_take_the_conversation_or_the_model_away():
    assert faults(extra_body={"messages": [], "model": "m"}).keys() == {
        "extra_body.messages",
        "extra_body.model",
    }


def test_going_on_with_the_last_message_adds_no_generation_prompt():
    """Its default is true at the server, which refuses the two together."""
    assert GenerationOptions(continue_final_message=True).to_payload() == {
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    assert "add_generation_prompt" in faults(continue_final_message=True, add_generation_prompt=True)


def test_changed_options_are_checked_anew():
    options = GenerationOptions(temperature=0)
    assert options.replaced(seed=4).to_payload() == {"temperature": 0, "seed": 4}
    with pytest.raises(ConfigError, match="seed"):
        options.replaced(seed="4")


def test_options_cannot_be_changed_in_place():
    with pytest.raises(AttributeError):
        GenerationOptions().seed = 3


class Mood(StrEnum):
    GOOD = "good"
    BAD = "bad"


class Pydantic(pydantic.BaseModel):
    mood: Mood
    score: int


class Inner(msgspec.Struct):
    score: int


class Struct(msgspec.Struct):
    mood: Mood
    inner: Inner


class Dict(TypedDict):
    mood: str


def format_of(schema):
    return GenerationOptions(output_schema=schema).to_payload()["response_format"]


def test_a_mapping_is_the_schema_itself():
    schema = {"type": "object", "title": "My answer!", "properties": {"a": {"type": "string"}}}
    assert format_of(schema) == {
        "type": "json_schema",
        "json_schema": {"name": "My_answer_", "schema": schema, "strict": True},
    }


@pytest.mark.parametrize("kind", [Pydantic, Struct, Dict])
def test_a_type_gives_its_schema_under_its_name(kind):
    described = format_of(kind)["json_schema"]
    assert described["name"] == kind.__name__
    assert described["schema"]["type"] == "object"
    assert "mood" in described["schema"]["properties"]


def test_a_structs_outermost_type_stands_in_its_place_and_inner_ones_can_be_found():
    schema = format_of(Struct)["json_schema"]["schema"]
    assert schema["properties"]["inner"] == {"$ref": "#/$defs/Inner"}
    assert schema["$defs"]["Inner"]["properties"] == {"score": {"type": "integer"}}

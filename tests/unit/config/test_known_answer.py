"""`pool.canary`: what it may be, from where, and what is said of one that cannot be."""

import json

import pytest

from dispatcher.config import KnownAnswer, PoolSettings, load_config
from dispatcher.errors import ConfigError

QUESTION = {"messages": [{"role": "user", "content": "The capital of France?"}], "expect": "Paris"}


def from_file(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return load_config(path, {}, {}).pool.canary


def faults_of(canary):
    with pytest.raises(ConfigError) as caught:
        load_config(None, {"pool": {"canary": canary}}, {})
    return {fault.where: fault.message.removesuffix(" (from arguments)") for fault in caught.value.faults}


@pytest.mark.parametrize("text", ["true", "yes", "on", "1"])
def test_a_word_for_yes_is_the_one_token_canary(tmp_path, text):
    assert from_file(tmp_path, f"pool: {{canary: {text}}}") is True


@pytest.mark.parametrize("text", ["false", "no", "off", "0"])
def test_a_word_for_no_is_none(tmp_path, text):
    assert from_file(tmp_path, f"pool: {{canary: {text}}}") is False


def test_a_question_from_a_file_is_what_the_environment_s_json_and_a_program_s_mapping_are(tmp_path):
    text = (
        'pool:\n  canary:\n    messages:\n    - {role: user, content: "The capital of France?"}\n'
        "    expect: Paris\n    model: m\n    max_tokens: 9\n"
    )
    question = {**QUESTION, "model": "m", "max_tokens": 9}
    known = KnownAnswer.model_validate(question)
    assert from_file(tmp_path, text) == known
    environ = {"DISPATCHER_POOL__CANARY": f" {json.dumps(question)}"}
    assert load_config(None, {}, environ).pool.canary == known
    assert load_config(None, {"pool": {"canary": question}}, {}).pool.canary == known
    assert PoolSettings(canary=known).canary == known


def test_a_question_is_for_the_first_model_and_64_tokens_where_it_does_not_say():
    known = KnownAnswer.model_validate(QUESTION)
    assert (known.model, known.max_tokens) == (None, 64)


def test_a_known_answer_is_dumped_and_read_again():
    settings = PoolSettings(canary=QUESTION)
    assert PoolSettings.model_validate(settings.model_dump()) == settings


@pytest.mark.parametrize("canary", ["maybe", 7, [], "", [True]])
def test_what_is_neither_switch_nor_question_is_refused(canary):
    message = faults_of(canary)["pool.canary"]
    assert message.startswith("must be true, false, or a mapping with messages and expect")


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        ({"expect": None}, "expect", "must be a valid string"),
        ({"expect": " \t"}, "expect", "must not be blank: every answer would hold it"),
        ({"messages": []}, "messages", "must hold a message or more"),
        ({"messages": "hello"}, "messages", "must be a list, got hello"),
        ({"messages": ["hello"]}, "messages[0]", "must be a mapping, got hello"),
        (
            {"messages": [{"role": "robot", "content": "x"}]},
            "messages[0].role",
            "must be 'system', 'developer', 'user' or 'assistant', got robot",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is missing"),
        (
            {"messages": [{"role": "user", "content": "x", "contents": "y"}]},
            "messages[0].contents",
            "is not a setting; did you mean content?",
        ),
        ({"max_tokens": 0}, "max_tokens", "must be greater than or equal to 1, got 0"),
        ({"max_tokens": True}, "max_tokens", "must be a number, not true or false, got True"),
        ({"model": ""}, "model", "must have at least 1 character"),
        ({"expected": "x"}, "expected", "is not a setting; did you mean expect?"),
    ],
)
def test_a_question_that_could_not_be_asked_is_refused_at_its_place(change, where, message):
    assert faults_of({**QUESTION, **change}) == {f"pool.canary.{where}": message}


def test_all_faults_of_a_question_are_told_together_with_their_lines(tmp_path):
    with pytest.raises(ConfigError) as caught:
        from_file(tmp_path, "pool:\n  canary:\n    messages: []\n    max_tokens: many\n  stall_s: -1\n")
    places = {fault.where: fault.message.rpartition(":")[2] for fault in caught.value.faults}
    assert places == {
        "pool.stall_s": "5)",
        "pool.canary.messages": "3)",
        "pool.canary.expect": "2)",
        "pool.canary.max_tokens": "4)",
    }


def test_json_that_is_not_whole_is_said_to_be_so():
    with pytest.raises(ConfigError, match=r"pool.canary: is not valid JSON: .*DISPATCHER_POOL__CANARY"):
        load_config(None, {}, {"DISPATCHER_POOL__CANARY": '{"messages": ['})

import base64
import json
import math
import struct

import pytest

from dispatcher.testing import tokens
from dispatcher.testing.answers import ANSWERS
from dispatcher.testing.refusals import RefusalError
from dispatcher.testing.replies import Asked
from dispatcher.testing.settings import FakeServerSettings

SETTINGS = FakeServerSettings(
    models=("first", "second"), adapters=("adapter",), max_model_len=64, answer_tokens=16
)


def ask(route, raw, settings=SETTINGS):
    data = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
    return ANSWERS[route](Asked(settings, data, "x-1", 1_700_000_000))


def answer(route, raw):
    return json.loads(ask(route, raw).body)


def chat(content="hello", **more):
    return answer("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **more})


def complete(**more):
    return answer("/v1/completions", {"prompt": "hello world", **more})


def refusal(route, raw):
    with pytest.raises(RefusalError) as caught:
        ask(route, raw)
    return caught.value.status, json.loads(caught.value.body)["error"]


# --- text ---


def test_the_same_body_gets_the_same_answer_and_another_body_another():
    assert chat() == chat()
    assert chat()["choices"] != chat("hello!")["choices"]


def test_an_answer_is_one_line_with_the_requests_id_and_the_first_model_name():
    reply = ask("/v1/chat/completions", {"model": "second", "messages": [{"role": "user", "content": "\n"}]})
    assert b"\n" not in reply.body
    found = json.loads(reply.body)
    assert (found["id"], found["model"], found["object"]) == ("chatcmpl-x-1", "first", "chat.completion")
    assert complete()["id"] == "cmpl-x-1"
    assert chat(model="adapter")["model"] == "adapter"


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_a_limit_is_kept_and_told(limit):
    found = chat(**{limit: 1})
    if found["choices"][0]["finish_reason"] == "stop":
        pytest.fail("the body's answer should be longer than one token")
    assert found["usage"]["completion_tokens"] == 1
    assert tokens.count(found["choices"][0]["message"]["content"]) == 1
    assert found["choices"][0]["finish_reason"] == "length"


def test_usage_counts_what_the_tokeniser_counts():
    messages = [{"role": "user", "content": "count these words"}]
    found = answer("/v1/chat/completions", {"messages": messages})
    counted = answer("/tokenize", {"messages": messages})["count"]
    text = found["choices"][0]["message"]["content"]
    assert found["usage"]["prompt_tokens"] == counted
    assert found["usage"]["completion_tokens"] == tokens.count(text)
    assert found["usage"]["total_tokens"] == counted + tokens.count(text)


def test_lengths_spread_around_the_mean():
    lengths = [chat(str(row))["usage"]["completion_tokens"] for row in range(200)]
    assert 14 < sum(lengths) / 200 < 18
    assert min(lengths) < 4
    assert max(lengths) > 28


def test_n_gives_different_texts():
    texts = [choice["message"]["content"] for choice in chat(n=3)["choices"]]
    assert len({*texts}) == 3


def test_a_stop_string_ends_the_text_before_it():
    raw = {"messages": [{"role": "user", "content": "hello"}], "stop": ["nowhere", " "]}
    choice = answer("/v1/chat/completions", raw)["choices"][0]
    assert " " not in choice["message"]["content"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", " ")


def test_a_batch_of_prompts_gets_a_choice_each():
    found = answer("/v1/completions", {"prompt": ["a", "b", tokens.encode(["c"])], "n": 2})
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3, 4, 5]
    assert found["usage"]["prompt_tokens"] == 3


def test_image_parts_are_accepted():
    parts = [{"type": "text", "text": "what is it"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    assert chat(parts)["choices"]


def test_responses_have_their_own_shape():
    found = answer("/v1/responses", {"input": "hi", "instructions": "be brief", "max_output_tokens": 1})
    assert (found["object"], found["status"]) == ("response", "incomplete")
    assert found["output"][0]["content"][0]["type"] == "output_text"
    assert found["usage"]["output_tokens"] == 1


# --- structured outputs ---


@pytest.mark.parametrize(
    ("constraint", "allowed"),
    [
        ({"structured_outputs": {"choice": ["good", "bad"]}}, {"good", "bad"}),
        ({"structured_outputs": {"regex": "yes|no"}}, {"yes", "no"}),
        ({"structured_outputs": {"json": {"enum": ["x", "y"]}}}, {'"x"', '"y"'}),
        ({"structured_outputs": {"json": '{"const": 1}'}}, {"1"}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"enum": [1, 2]}},
                }
            },
            {"1", "2"},
        ),
    ],
)
def test_structured_outputs_are_kept_to(constraint, allowed):
    found = {chat(str(row), **constraint)["choices"][0]["message"]["content"] for row in range(40)}
    assert found == allowed


def test_a_json_object_is_one():
    content = chat(response_format={"type": "json_object"})["choices"][0]["message"]["content"]
    assert isinstance(json.loads(content), dict)


def test_guided_spellings_are_ignored():
    found = chat(guided_choice=["good"], guided_regex="(", guided_json={})
    assert found["choices"][0]["message"]["content"] != "good"


@pytest.mark.parametrize(
    ("version", "understood"),
    [
        ("0.10.2", {"guided_choice"}),
        ("0.11.2", {"guided_choice", "structured_outputs"}),
        ("0.12.0", {"structured_outputs"}),
        ("unknown", {"structured_outputs"}),
    ],
)
def test_a_version_ignores_the_spellings_that_it_does_not_know(version, understood):
    settings = FakeServerSettings(version=version)
    spellings = {"guided_choice": ["good"], "structured_outputs": {"choice": ["good"]}}
    for name, constraint in spellings.items():
        body = {"messages": [{"role": "user", "content": "hello"}], name: constraint}
        found = json.loads(ask("/v1/chat/completions", body, settings).body)
        assert (found["choices"][0]["message"]["content"] == "good") == (name in understood)


def test_a_limit_cuts_structured_outputs_short():
    choice = chat(structured_outputs={"choice": ["unbelievable"]}, max_tokens=1)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("unbe", "length")


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "("},
        {"json": "{"},
        {"grammar": "root ::= x"},
        {"choice": []},
        {"choice": ["a"], "regex": "a"},
        {},
    ],
)
def test_impossible_constraints_are_the_requests_fault(constraint):
    body = {"messages": [{"role": "user", "content": ""}], "structured_outputs": constraint}
    status, error = refusal("/v1/chat/completions", body)
    assert (status, error["type"], error["param"]) == (400, "BadRequestError", None)


# --- log probabilities ---


def test_of_a_choice_the_allowed_tokens_sum_to_one_and_others_are_forbidden():
    found = chat(structured_outputs={"choice": ["positive", "negative"]}, logprobs=True, top_logprobs=6)
    first = found["choices"][0]["logprobs"]["content"][0]
    top = {entry["token"]: entry["logprob"] for entry in first["top_logprobs"]}
    allowed = {token: value for token, value in top.items() if value > -9999.0}
    assert allowed.keys() >= {"posi", "nega"}
    assert allowed.keys() <= {"posi", "nega", "p", "n"}
    assert sum(map(math.exp, allowed.values())) == pytest.approx(1.0)
    assert min(top.values()) == -9999.0
    assert max(top, key=top.get) == first["token"]


def test_the_single_choice_is_certain():
    found = chat(structured_outputs={"choice": ["x"]}, logprobs=True, top_logprobs=1)
    assert found["choices"][0]["logprobs"]["content"][0]["logprob"] == 0.0


def test_after_a_choice_the_end_of_the_answer_is_shown_beside_what_could_follow():
    body = {"structured_outputs": {"choice": ["posi", "positive"]}, "max_tokens": 1}
    short = [complete(prompt=f"{number}", **body) for number in range(20)]
    assert {one["choices"][0]["finish_reason"] for one in short} == {"stop", "length"}
    found = chat(structured_outputs={"choice": ["posi"]}, logprobs=True, top_logprobs=2)
    content = found["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["posi", "</s>"]
    found = complete(prompt="1", logprobs=5, structured_outputs={"choice": ["", "tive"]})
    first = found["choices"][0]["logprobs"]["top_logprobs"][0]
    allowed = {token: value for token, value in first.items() if value > -9999.0}
    assert allowed.keys() == {"</s>", "tive", "t"}
    assert sum(map(math.exp, allowed.values())) == pytest.approx(1.0)


def test_tokens_are_named_by_their_ids_on_demand():
    ids = answer("/tokenize", {"prompt": "posi"})["tokens"]
    asked = {"structured_outputs": {"choice": ["posi"]}, "return_tokens_as_token_ids": True}
    content = chat(logprobs=True, top_logprobs=1, **asked)["choices"][0]["logprobs"]["content"]
    assert content[0]["token"] == content[0]["top_logprobs"][0]["token"] == f"token_id:{ids[0]}"
    assert bytes(content[0]["bytes"]) == b"posi"
    lists = complete(logprobs=1, **asked)["choices"][0]["logprobs"]
    assert lists["tokens"][0] == f"token_id:{ids[0]}"
    assert lists["top_logprobs"][0].keys() == {f"token_id:{ids[0]}"}


def test_logprobs_cover_every_token():
    found = chat(logprobs=True)
    content = found["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == found["choices"][0]["message"]["content"]
    assert chat()["choices"][0]["logprobs"] is None


def test_a_prompt_is_scored_by_echoing_it():
    found = complete(echo=True, max_tokens=0, logprobs=1)
    lists = found["choices"][0]["logprobs"]
    assert found["choices"][0]["text"] == "".join(lists["tokens"]) == "hello world"
    assert lists["token_logprobs"][0] is None
    assert all(value <= 0 for value in lists["token_logprobs"][1:])
    assert lists["text_offset"] == [0, 4, 5, 10]
    assert found["usage"]["completion_tokens"] == 1, "vLLM generates a token that it does not show"
    assert found["choices"][0]["prompt_logprobs"][0] is None


def test_a_chat_is_scored_through_its_template():
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}]
    raw = {
        "messages": messages,
        "prompt_logprobs": 0,
        "add_generation_prompt": False,
        "continue_final_message": True,
        "max_tokens": 1,
    }
    entries = answer("/v1/chat/completions", raw)["prompt_logprobs"]
    assert entries[0] is None
    [last] = entries[-1].values()
    assert last["decoded_token"] == "yes"  # noqa: S105 - a token of text


# --- streams ---


def events(reply):
    lines = reply.body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_chat_stream_carries_the_same_text_and_one_finish_reason():
    body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
    found = events(ask("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}))
    deltas = [choice for event in found for choice in event["choices"]]
    text = "".join(choice["delta"].get("content", "") for choice in deltas)
    assert [choice["finish_reason"] for choice in deltas if choice["finish_reason"]] == ["stop"]
    assert found[-1]["usage"]["completion_tokens"] == tokens.count(text) > 0


def test_a_completion_stream_carries_every_choice():
    found = events(ask("/v1/completions", {"prompt": "a", "n": 2, "stream": True, "max_tokens": 3}))
    finished = [event["choices"][0]["index"] for event in found if event["choices"][0]["finish_reason"]]
    assert finished == [0, 1]
    assert all("usage" not in event for event in found)


# --- numbers ---


def test_embeddings_are_unit_vectors_in_both_encodings():
    [entry] = answer("/v1/embeddings", {"input": "a", "dimensions": 5})["data"]
    assert math.hypot(*entry["embedding"]) == pytest.approx(1.0)
    encoded = answer("/v1/embeddings", {"input": "a", "dimensions": 5, "encoding_format": "base64"})
    unpacked = struct.unpack("<5f", base64.b64decode(encoded["data"][0]["embedding"]))
    assert unpacked == pytest.approx(entry["embedding"], abs=1e-6)


@pytest.mark.parametrize("given", ["a", ["a"], tokens.encode(["a"]), [tokens.encode(["a"])]])
def test_every_spelling_of_an_input_is_the_same_input(given):
    assert (
        answer("/v1/embeddings", {"input": given})["data"] == answer("/v1/embeddings", {"input": "a"})["data"]
    )


@pytest.mark.parametrize("route", ["/score", "/v1/score"])
def test_scores_pair_one_with_many(route):
    found = answer(route, {"text_1": "q", "text_2": ["a", "b"]})
    assert [entry["index"] for entry in found["data"]] == [0, 1]
    assert all(0 <= entry["score"] < 1 for entry in found["data"])
    assert refusal(route, {"text_1": ["q", "r", "s"], "text_2": ["a", "b"]})[0] == 400


@pytest.mark.parametrize("route", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_ranking_falls_and_names_its_documents(route):
    documents = ["a", "b", "c", "d"]
    results = answer(route, {"query": "q", "documents": documents})["results"]
    scores = [entry["relevance_score"] for entry in results]
    assert scores == sorted(scores, reverse=True)
    assert all(entry["document"]["text"] == documents[entry["index"]] for entry in results)
    top = answer(route, {"query": "q", "documents": documents, "top_n": 2})["results"]
    assert top == results[:2]


def test_classes_have_probabilities_that_sum_to_one():
    [entry] = answer("/classify", {"input": "a"})["data"]
    assert sum(entry["probs"]) == pytest.approx(1.0)
    assert entry["label"] == f"LABEL_{entry['probs'].index(max(entry['probs']))}"


def test_pooling_has_its_own_shape():
    assert answer("/pooling", {"input": "a"})["data"][0]["object"] == "pooling"


def test_tokens_go_there_and_back():
    found = answer("/tokenize", {"prompt": "so positive", "return_token_strs": True})
    assert found["token_strs"] == ["so", " posi", "tive"]
    assert (found["count"], found["max_model_len"]) == (3, 64)
    assert answer("/detokenize", {"tokens": found["tokens"]}) == {"prompt": "so positive"}
    assert answer("/tokenize", {"prompt": ""})["token_strs"] is None


# --- errors ---


@pytest.mark.parametrize("route", ANSWERS)
def test_malformed_json_is_a_bad_request_on_every_route(route):
    status, error = refusal(route, b'{"model": ')
    assert (status, error["type"], error["code"]) == (400, "Bad Request", 400)


@pytest.mark.parametrize("route", ANSWERS)
def test_invalid_utf8_is_a_bad_request_on_every_route(route):
    assert refusal(route, b'{"model": "\xff"}')[0] == 400


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": ""}),
        ("/tokenize", {"prompt": ""}),
        ("/detokenize", {"tokens": []}),
    ],
)
def test_an_unknown_model_is_not_found_on_every_route_of_text(route, body):
    status, error = refusal(route, {**body, "model": "nobody"})
    assert (status, error["type"], error["param"], error["code"]) == (404, "NotFoundError", "model", 404)
    assert error["message"] == "The model `nobody` does not exist. Valid aliases: first, second."


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/embeddings", {"input": ""}),
        ("/pooling", {"input": ""}),
        ("/score", {"text_1": "", "text_2": ""}),
        ("/rerank", {"query": "", "documents": []}),
        ("/classify", {"input": ""}),
    ],
)
def test_an_unknown_model_is_not_found_on_every_route_that_pools(route, body):
    status, error = refusal(route, {**body, "model": "nobody"})
    assert (status, error["type"], error["param"], error["code"]) == (404, "NotFoundError", None, 404)
    assert error["message"] == "The model `nobody` does not exist."


def test_a_prompt_that_exceeds_the_context_is_refused():
    status, error = refusal("/v1/completions", {"prompt": "word " * 65})
    assert (status, error["type"], error["param"]) == (400, "BadRequestError", "input_tokens")
    assert error["message"].startswith("This model's maximum context length is 64 tokens. However, ")


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_a_limit_above_the_whole_context_is_refused(limit):
    error = refusal("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], limit: 65})[1]
    assert error["param"] == limit
    assert error["message"].startswith(f"{limit}=65 cannot be greater than max_model_len=64.")


def test_a_limit_above_what_the_prompt_leaves_is_cut_down():
    choice = complete(prompt=tokens.encode(["a"] * 62), max_tokens=64)["choices"][0]
    assert choice["finish_reason"] in ("stop", "length")
    assert tokens.count(choice["text"]) <= 2


def test_a_prompt_that_leaves_no_room_is_refused_by_the_limit_s_name():
    assert refusal("/v1/completions", {"prompt": tokens.encode(["a"] * 64)})[1]["param"] == "max_tokens"


def test_long_embeddings_are_refused():
    assert refusal("/v1/embeddings", {"input": "word " * 65})[1]["param"] == "input_tokens"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"n": 0}, None),
        ({"n": 16_385}, None),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_parameters_out_of_range_are_named(more, param):
    status, error = refusal("/v1/completions", {"prompt": "a", **more})
    assert (status, error["type"], error["param"]) == (400, "BadRequestError", param)


def test_a_wrong_type_and_a_missing_field_are_named():
    assert refusal("/v1/completions", {"prompt": "a", "temperature": "hot"})[1]["param"] == "body.temperature"
    assert refusal("/v1/chat/completions", {})[1]["param"] == "body.messages"
    assert refusal("/v1/chat/completions", {"messages": [{}]})[1]["param"] == "body.messages.0.role"
    assert refusal("/v1/completions", [1])[1]["param"] == "body"


def test_a_completion_or_a_chat_of_nothing_is_refused():
    assert refusal("/v1/completions", {})[1]["param"] == "prompt"
    assert refusal("/v1/completions", {"prompt": ""})[1]["param"] == "prompt"
    assert refusal("/v1/chat/completions", {"messages": []})[0] == 400


def test_a_lone_surrogate_is_refused_by_the_tokeniser():
    status, error = refusal("/v1/completions", b'{"prompt": "a\\ud83d"}')
    assert status == 400
    assert error["message"].startswith("TextEncodeInput must be Union[")


@pytest.mark.parametrize("ids", [[-1], [["x"]], [[0.5]], [{}]])
def test_odd_prompts_are_the_requests_fault(ids):
    assert refusal("/v1/completions", {"prompt": ids})[0] == 400

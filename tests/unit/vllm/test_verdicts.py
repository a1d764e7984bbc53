import json

import pytest

from dispatcher.model import (
    Answer,
    Break,
    BreakKind,
    ErrorCode,
    Judgement,
    Request,
    Tokens,
    Verdict,
)
from dispatcher.vllm import texts
from dispatcher.vllm.verdicts import judge

CHAT = "/v1/chat/completions"
JSON = "application/json"


def request(url=CHAT, model="m"):
    return Request(0, "a", url, model, b"{}")


def encoded(value):
    return json.dumps(value, separators=(",", ":")).encode()


def chat(finish_reason="stop", **fields):
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": finish_reason}
    return {"id": "i", "model": "m", "choices": [choice], **fields}


def nested(message="no", status=400, **fields):
    return encoded(
        {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status, **fields}}
    )


def flat(message="no", status=400, **fields):
    return encoded(
        {
            "object": "error",
            "message": message,
            "type": "BadRequestError",
            "param": None,
            "code": status,
            **fields,
        }
    )


def judged(body, status=200, url=CHAT, models=None, model="m", healthy=None, **fields):
    answer = Answer(status, body, fields.pop("content_type", JSON), "rid", **fields)
    return judge(answer, request(url, model), models, healthy=healthy)


# Successes


def test_a_whole_answer_succeeds_with_the_server_s_own_bytes_and_counts():
    body = encoded(chat(usage={"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}))
    judgement = judged(body)
    assert judgement == Judgement(
        Verdict.SUCCESS, body=body, status=200, request_id="rid", tokens=Tokens(5, 7)
    )
    assert judgement.body is body


@pytest.mark.parametrize(
    "reason", ["stop", "length", "tool_calls", "function_call", "content_filter", "repetition"]
)
def test_a_choice_that_came_to_its_end_succeeds(reason):
    assert judged(encoded(chat(reason))).verdict is Verdict.SUCCESS


@pytest.mark.parametrize("reason", [None, "", "abort", "error"])
def test_a_choice_that_did_not_come_to_its_end_is_doubtful(reason):
    whole = chat()["choices"]
    judgement = judged(encoded(chat(choices=[*whole, *chat(reason)["choices"]])))
    assert (judgement.verdict, judgement.code) == (Verdict.DOUBTFUL, ErrorCode.INVALID_RESPONSE)
    assert judgement.body is None


WHOLE = {
    CHAT: chat(),
    "/v1/completions": {"choices": [{"text": "x", "finish_reason": "stop"}]},
    "/v1/embeddings": {"data": [{"embedding": [0.1], "index": 0}]},
    "/score": {"data": [{"score": 0.5}]},
    "/v1/score": {"data": [{"score": 0.5}]},
    "/classify": {"data": [{"label": "x", "probs": [1.0]}]},
    "/pooling": {"data": [{"data": [[0.1]]}]},
    "/rerank": {"results": [{"index": 0}]},
    "/v1/rerank": {"results": [{"index": 0}]},
    "/v2/rerank": {"results": [{"index": 0}]},
    "/tokenize": {"tokens": [1, 2], "count": 2},
    "/v1/responses": {"status": "completed", "output": [{"type": "message"}], "error": None},
    "/unheard/of": {"anything": 1},
}


@pytest.mark.parametrize("url", WHOLE)
def test_every_route_s_whole_answer_succeeds(url):
    assert judged(encoded(WHOLE[url]), url=url).verdict is Verdict.SUCCESS


@pytest.mark.parametrize("url", [url for url in WHOLE if url != "/unheard/of"])
def test_every_route_s_answer_without_its_payload_is_doubtful(url):
    for body in (
        {},
        *({**WHOLE[url], key: None} for key in WHOLE[url] if key not in ("id", "model", "error")),
    ):
        judgement = judged(encoded(body), url=url)
        assert (judgement.verdict, judgement.code) == (Verdict.DOUBTFUL, ErrorCode.INVALID_RESPONSE), body


@pytest.mark.parametrize(
    "url", ["/v1/embeddings", "/score", "/classify", "/pooling", "/rerank", CHAT, "/v1/completions"]
)
def test_an_empty_list_is_no_payload(url):
    emptied = {key: [] if isinstance(value, list) else value for key, value in WHOLE[url].items()}
    assert judged(encoded(emptied), url=url).verdict is Verdict.DOUBTFUL


@pytest.mark.parametrize("url", WHOLE)
def test_an_error_within_a_200_is_doubtful_and_its_words_are_kept(url):
    judgement = judged(encoded({**WHOLE[url], "error": {"message": "engine hiccup"}}), url=url)
    assert (judgement.verdict, judgement.code) == (Verdict.DOUBTFUL, ErrorCode.INVALID_RESPONSE)
    assert "engine hiccup" in judgement.message


def test_an_incomplete_response_needs_a_reason():
    incomplete = {"status": "incomplete", "output": []}
    reason = {"incomplete_details": {"reason": "max_output_tokens"}}
    assert judged(encoded(incomplete), url="/v1/responses").verdict is Verdict.DOUBTFUL
    assert judged(encoded(incomplete | reason), url="/v1/responses").verdict is Verdict.SUCCESS


@pytest.mark.parametrize("status", ["failed", "in_progress", "queued", "cancelled"])
def test_a_response_that_did_not_complete_is_doubtful(status):
    assert judged(encoded({"status": status, "output": []}), url="/v1/responses").verdict is Verdict.DOUBTFUL


def test_a_pooling_plugin_may_answer_with_anything():
    assert judged(encoded({"data": {"boxes": []}}), url="/pooling").verdict is Verdict.SUCCESS


def test_responses_count_their_tokens_by_other_names():
    body = WHOLE["/v1/responses"] | {"usage": {"input_tokens": 3, "output_tokens": 4}}
    assert judged(encoded(body), url="/v1/responses").tokens == Tokens(3, 4)


@pytest.mark.parametrize("usage", [None, 5, "x", [], {}, {"prompt_tokens": -1}, {"prompt_tokens": "5"}])
def test_odd_token_counts_do_not_cost_the_answer(usage):
    judgement = judged(encoded(chat(usage=usage)))
    assert judgement.verdict is Verdict.SUCCESS
    assert judgement.tokens == Tokens()


# Strict JSON on one line


def test_a_pretty_printed_answer_is_brought_to_one_line_without_touching_numbers():
    body = json.dumps(chat(), indent=2).encode().replace(b'"i"', b"1.000000000000000000000000000000001e400")
    for ends in (body, body.replace(b"\n", b"\r\n")):
        judgement = judged(ends)
        assert judgement.verdict is Verdict.SUCCESS
        assert b"\n" not in judgement.body
        assert b"\r" not in judgement.body
        assert b"1.000000000000000000000000000000001e400" in judgement.body


def test_a_byte_order_mark_and_white_space_around_are_cut_off():
    body = encoded(chat())
    assert judged(b"\xef\xbb\xbf \r\n" + body + b"\n\n").body == body


def test_nan_and_infinity_become_null_outside_of_strings_only():
    fields = {"logprobs": [float("nan"), float("inf"), -float("inf")], "text": 'NaN "Infinity" \\ NaN'}
    judgement = judged(encoded(chat(**fields)))
    assert judgement.verdict is Verdict.SUCCESS
    answer = json.loads(judgement.body, parse_constant=pytest.fail)
    assert answer["logprobs"] == [None, None, None]
    assert answer["text"] == fields["text"]


def test_lone_surrogates_become_the_replacement_character():
    text = r"\ud83d \\ud83d \\\ud83d \ud83d\ude00 \udc00"
    judgement = judged(encoded(chat()).replace(b'"x"', b'"%b"' % text.encode()))
    assert judgement.verdict is Verdict.SUCCESS
    content = json.loads(judgement.body)["choices"][0]["message"]["content"]
    assert content == "\ufffd \\ud83d \\\ufffd \U0001f600 \ufffd"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n",
        b"null",
        b"[]",
        b'"text"',
        b"<html>",
        b'data: {"choices":[]}\n\ndata: [DONE]\n\n',
        encoded(chat())[:-1],
        encoded(chat()) + b"x",
        encoded(chat()) + encoded(chat()),
        encoded(chat()).replace(b'"x"', b'"\xff"'),
        encoded(chat()).replace(b'"x"', b'"\xed\xa0\x80"'),
        encoded(chat()).replace(b'"x"', b'"a\tb"'),
        encoded(chat()).replace(b'"x"', b"01"),
        encoded(chat()).replace(b'"x"', b"undefined"),
        b'{"choices":' + b"[" * 100_000,
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_not_one_strict_json_object_is_doubtful(body):
    judgement = judged(body)
    assert (judgement.verdict, judgement.code) == (Verdict.DOUBTFUL, ErrorCode.INVALID_RESPONSE)
    assert judgement.message
    assert judgement.body is None


def test_half_an_answer_is_not_repeated_in_the_message():
    judgement = judged(b'data: {"choices":[{"delta":{"content":"half a thought"}}]}')
    assert "thought" not in judgement.message


# The model that answered

MODELS = {"m": "org/m", "alias": "org/m", "adapter": "org/adapter"}


@pytest.mark.parametrize(
    ("asked", "answered", "models", "verdict"),
    [
        ("m", "m", MODELS, Verdict.SUCCESS),
        ("m", "m", {}, Verdict.SUCCESS),
        ("alias", "m", MODELS, Verdict.SUCCESS),
        ("m", "org/m", MODELS, Verdict.SUCCESS),
        ("m", "adapter", MODELS, Verdict.MISMATCH),
        ("adapter", "m", MODELS, Verdict.MISMATCH),
        ("m", "other", MODELS, Verdict.MISMATCH),
        ("m", "other", {}, Verdict.MISMATCH),
        ("m", "other", None, Verdict.SUCCESS),
        (None, "other", MODELS, Verdict.SUCCESS),
        ("m", None, MODELS, Verdict.SUCCESS),
    ],
)
def test_the_model_that_answered_must_be_the_one_asked_for(asked, answered, models, verdict):
    judgement = judged(encoded(chat(model=answered)), models=models, model=asked)
    assert judgement.verdict is verdict
    if verdict is Verdict.MISMATCH:
        assert judgement.code is ErrorCode.MODEL_NOT_FOUND
        assert judgement.body is None


# Refusals

CONTEXT_MESSAGES = [
    "This model's maximum context length is 1024 tokens. However, you requested 2000 output tokens",
    "This model's maximum context length is 4096 tokens. However, you requested 6379 tokens (6029 in",
    "'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's maximum context length is 4096",
    "max_tokens=300000 cannot be greater than max_model_len=1024. Please request fewer output tokens.",
    "Input length (9) exceeds model's maximum context length (8).",
    "The decoder prompt (length 163840) is longer than the maximum model length of 131072. Make sure",
    "The decoder prompt (length 8) plus the requested output is longer than the maximum model length of 8.",
    "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
    "the request exceeds the available context size, try increasing it",
]


@pytest.mark.parametrize("shape", [nested, flat])
@pytest.mark.parametrize("message", CONTEXT_MESSAGES)
def test_a_prompt_too_long_is_known_by_every_wording_in_both_shapes(shape, message):
    judgement = judged(shape(message), 400)
    assert (judgement.verdict, judgement.code) == (Verdict.REQUEST_FAULT, ErrorCode.CONTEXT_LENGTH)
    assert judgement.message == message
    assert json.loads(judgement.body)


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (400, {"param": "input_tokens"}),
        (400, {"param": "input_text"}),
        (400, {"code": "context_length_exceeded"}),
        (400, {"type": "exceed_context_size_error"}),
        (500, {"type": "exceed_context_size_error"}),
        (413, {"param": "input_tokens"}),
    ],
)
@pytest.mark.parametrize("shape", [nested, flat])
def test_a_prompt_too_long_is_known_by_typed_fields_alone(shape, status, fields):
    judgement = judged(shape("any words", status, **fields), status)
    assert (judgement.verdict, judgement.code) == (Verdict.REQUEST_FAULT, ErrorCode.CONTEXT_LENGTH)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, nested(param="temperature")),
        (400, flat(param="temperature")),
        (400, nested(type="Bad Request", param="body.messages")),
        (400, nested(type="invalid_request_error")),
        (422, nested(param="prompt")),
        (
            422,
            encoded({"detail": [{"loc": ["body", "messages"], "msg": "Field required", "type": "missing"}]}),
        ),
        (400, encoded({"detail": [{"loc": ["body"], "msg": "bad"}]})),
        (413, b"<html><head><title>413 Request Entity Too Large</title></head></html>"),
        (413, b""),
        (404, nested("Response not found", param="response_id", type="invalid_request_error")),
        (501, nested("The model does not support Embeddings API", 501, type="NotImplementedError")),
    ],
)
def test_a_refusal_that_names_the_request_is_its_fault(status, body):
    judgement = judged(body, status)
    assert (judgement.verdict, judgement.code) == (Verdict.REQUEST_FAULT, ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (400, nested("TextEncodeInput must be Union[...]"), ErrorCode.INVALID_REQUEST),
        (400, nested(type="Bad Request"), ErrorCode.INVALID_REQUEST),
        (400, b"<html>The plain HTTP request was sent to HTTPS port</html>", ErrorCode.INVALID_REQUEST),
        (400, b"", ErrorCode.INVALID_REQUEST),
        (422, b"unprocessable", ErrorCode.INVALID_REQUEST),
        (
            422,
            nested("cannot fetch", type="UnprocessableEntityError", param="image_url"),
            ErrorCode.INVALID_REQUEST,
        ),
        (404, b'{"detail":"Not Found"}', ErrorCode.INVALID_REQUEST),
        (404, b"404 page not found\n", ErrorCode.INVALID_REQUEST),
        (404, nested(type="Not Found"), ErrorCode.INVALID_REQUEST),
        (405, b'{"detail":"Method Not Allowed"}', ErrorCode.INVALID_REQUEST),
        (409, b"", ErrorCode.INVALID_REQUEST),
        (425, b"", ErrorCode.INVALID_REQUEST),
        (408, b"", ErrorCode.TIMEOUT),
        (504, b"<html>504 Gateway Time-out</html>", ErrorCode.TIMEOUT),
        (500, b"", ErrorCode.SERVER_ERROR),
        (500, b"Internal Server Error", ErrorCode.SERVER_ERROR),
        (500, nested("Out of range float values are not JSON compliant", 500), ErrorCode.SERVER_ERROR),
        (500, nested("maximum context length", 500), ErrorCode.SERVER_ERROR),
        (501, b"", ErrorCode.INVALID_REQUEST),
        (520, b"", ErrorCode.SERVER_ERROR),
        (301, b"", ErrorCode.INVALID_RESPONSE),
        (307, b"", ErrorCode.INVALID_RESPONSE),
        (100, b"", ErrorCode.INVALID_RESPONSE),
    ],
)
def test_what_names_nobody_is_doubtful(status, body, code):
    judgement = judged(body, status)
    assert (judgement.verdict, judgement.code, judgement.hard) == (Verdict.DOUBTFUL, code, False)


@pytest.mark.parametrize("shape", [nested, flat])
@pytest.mark.parametrize("param", ["model", None])
def test_an_unknown_model_is_a_mismatch(shape, param):
    body = shape("The model `m` does not exist.", 404, type="NotFoundError", param=param)
    judgement = judged(body, 404)
    assert (judgement.verdict, judgement.code) == (Verdict.MISMATCH, ErrorCode.MODEL_NOT_FOUND)


def test_openai_s_word_for_an_unknown_model_is_a_mismatch():
    body = nested("no such model", type="invalid_request_error", code="model_not_found")
    assert judged(body, 404).verdict is Verdict.MISMATCH


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("body", [b'{"error":"Unauthorized"}', nested("Received API Key = sk-secret")])
def test_refused_credentials_are_a_mismatch_and_nothing_of_the_key_is_kept(status, body):
    judgement = judged(body, status)
    assert judgement.verdict is Verdict.MISMATCH
    assert "sk-secret" not in judgement.message
    assert judgement.body is None


@pytest.mark.parametrize("shape", [nested, flat])
@pytest.mark.parametrize("text", texts.ENGINE_DEAD)
@pytest.mark.parametrize("status", [500, 400])
def test_a_dead_engine_is_hard_evidence_against_the_server(shape, text, status):
    judgement = judged(shape(f"{text}. See stack trace", status, type="InternalServerError"), status)
    assert (judgement.verdict, judgement.hard) == (Verdict.SERVER_FAULT, True)


def test_a_dead_engine_s_text_within_a_prompt_that_is_quoted_convicts_no_server():
    body = nested("invalid input: 'EngineCore encountered an issue'", param="prompt")
    assert judged(body, 400).verdict is Verdict.REQUEST_FAULT


def test_429_is_overload_and_retry_after_is_handed_on():
    judgement = judged(b"", 429, retry_after_s=3.0)
    assert (judgement.verdict, judgement.retry_after_s) == (Verdict.OVERLOAD, 3.0)


def test_502_is_the_server_s_fault_and_no_hard_evidence():
    judgement = judged(b"<html>502 Bad Gateway</html>", 502)
    assert (judgement.verdict, judgement.hard) == (Verdict.SERVER_FAULT, False)


QUEUE_FULL = nested("The engine is currently busy", 503, type="Service Unavailable")
RETRYABLE = nested("Request failed; please retry", 503, type="ServiceUnavailableError")
LOADING = nested("Loading model", 503, type="unavailable_error")
MESH = b"upstream connect error or disconnect/reset before headers. reset reason: connection failure"
FULL_MESH = b"upstream connect error or disconnect/reset before headers. reset reason: overflow"
PAGE = b"<html><body>503 Service Temporarily Unavailable</body></html>"
BUSY, GONE = Verdict.OVERLOAD, Verdict.SERVER_FAULT


@pytest.mark.parametrize(
    ("body", "retry_after_s", "unknown", "healthy"),
    [
        (QUEUE_FULL, None, BUSY, BUSY),
        (RETRYABLE, None, BUSY, BUSY),
        (b'{"detail":"busy"}', None, BUSY, BUSY),
        (b"", 1.0, BUSY, BUSY),
        (PAGE, 0.0, BUSY, BUSY),
        (FULL_MESH, None, BUSY, BUSY),
        (MESH, None, GONE, GONE),
        (b"no healthy upstream", None, GONE, GONE),
        (PAGE, None, GONE, GONE),
        (LOADING, None, GONE, BUSY),
        (b"", None, GONE, BUSY),
        (b"Service Unavailable", None, GONE, BUSY),
    ],
)
def test_503_tells_busy_from_gone(body, retry_after_s, unknown, healthy):
    assert judged(body, 503, retry_after_s=retry_after_s).verdict is unknown
    assert judged(body, 503, retry_after_s=retry_after_s, healthy=True).verdict is healthy
    down = judged(body, 503, retry_after_s=retry_after_s, healthy=False)
    assert (down.verdict, down.hard) == (GONE, True)


def test_html_is_known_by_its_type_as_well():
    assert judged(b"503", 503, content_type="text/html; charset=utf-8", healthy=True).verdict is GONE


# What is kept of a refusal


def test_a_long_message_is_cut_on_a_character_s_boundary():
    judgement = judged(nested("x" + "é" * 5000, param="prompt"), 400)
    assert judgement.message == "x" + "é" * 1023
    assert judgement.body is None


def test_a_short_json_body_is_kept_on_one_line():
    body = json.dumps({"error": {"message": "no", "param": "n"}}, indent=1).encode()
    assert judged(body, 400).body == b'{"error":{"message":"no","param":"n"}}'


@pytest.mark.parametrize("body", [b"", b"oops", b"\xff\xfe", b'{"a":NaN}', b'"\\ud800"'])
def test_a_body_that_is_not_strict_json_is_not_kept(body):
    judgement = judged(body, 500)
    assert judgement.body is None
    assert judgement.message


def test_fastapi_s_places_are_spelled_out():
    body = encoded(
        {"detail": [{"loc": ["body", "n", 0], "msg": "too big"}, {"loc": ["body"], "msg": "odd"}, 5]}
    )
    assert judged(body, 422).message == "body.n.0: too big; body: odd; 5"


# Breaks


@pytest.mark.parametrize(
    ("kind", "verdict", "code"),
    [
        (BreakKind.REFUSED, Verdict.SERVER_FAULT, ErrorCode.SERVER_ERROR),
        (BreakKind.RESET, Verdict.SERVER_FAULT, ErrorCode.SERVER_ERROR),
        (BreakKind.STALE, Verdict.STALE_CONNECTION, ErrorCode.SERVER_ERROR),
        (BreakKind.TRUNCATED, Verdict.DOUBTFUL, ErrorCode.INVALID_RESPONSE),
        (BreakKind.TIMED_OUT, Verdict.DOUBTFUL, ErrorCode.TIMEOUT),
        (BreakKind.CONNECT_TIMED_OUT, Verdict.SERVER_FAULT, ErrorCode.SERVER_ERROR),
        (BreakKind.UNRESOLVED, Verdict.SERVER_FAULT, ErrorCode.SERVER_ERROR),
        (BreakKind.TLS, Verdict.SERVER_FAULT, ErrorCode.SERVER_ERROR),
        (BreakKind.PROTOCOL, Verdict.DOUBTFUL, ErrorCode.INVALID_RESPONSE),
        (BreakKind.GIVEN_UP, Verdict.SERVER_FAULT, ErrorCode.SERVER_ERROR),
        (BreakKind.SILENT, Verdict.DOUBTFUL, ErrorCode.TIMEOUT),
        (BreakKind.LOCAL, Verdict.LOCAL_FAULT, ErrorCode.SERVER_ERROR),
        (BreakKind.OFFLINE, Verdict.LOCAL_FAULT, ErrorCode.SERVER_ERROR),
        (BreakKind.AWAY, Verdict.LOCAL_FAULT, ErrorCode.SERVER_ERROR),
    ],
)
def test_every_break_has_its_verdict(kind, verdict, code):
    judgement = judge(Break(kind, "why"), request(), None)
    assert (judgement.verdict, judgement.code) == (verdict, code)
    assert judgement.hard is (kind is BreakKind.REFUSED)
    assert judgement.offline is (kind is BreakKind.OFFLINE)
    assert judgement.message.endswith(": why")
    assert judge(Break(kind), request(), None).message

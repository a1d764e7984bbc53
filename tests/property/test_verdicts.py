"""`judge` is total, and a success is always one line of strict JSON."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.model import Answer, Break, BreakKind, Judgement, Request, Verdict
from dispatcher.vllm.complaints import TEXT_BYTES_MAX
from dispatcher.vllm.verdicts import judge

ROUTES = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/score",
    "/v1/rerank",
    "/pooling",
    "/classify",
    "/tokenize",
    "/other",
]
KEYS = [
    *(
        "choices",
        "data",
        "results",
        "tokens",
        "count",
        "output",
        "status",
        "usage",
        "model",
        "error",
        "detail",
    ),
    *(
        "message",
        "text",
        "type",
        "param",
        "code",
        "object",
        "finish_reason",
        "loc",
        "msg",
        "incomplete_details",
    ),
]
WORDS = ["stop", "abort", "error", "completed", "incomplete", "m", "NotFoundError", "model", "input_tokens"]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(st.characters(exclude_categories=()), max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=8,
)
choices = st.fixed_dictionaries(
    {"message": st.fixed_dictionaries({"content": scalars}), "text": scalars},
    optional={"finish_reason": st.sampled_from(["stop", "length", "abort", None])},
)
near_answers = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(choices, max_size=3),
        "data": st.lists(st.dictionaries(st.text(max_size=5), values), max_size=2) | values,
        "results": st.lists(st.just({}), max_size=2),
        "output": st.lists(st.just({}), max_size=2),
        "status": st.sampled_from(WORDS),
        "tokens": st.lists(st.integers(), max_size=2),
        "count": st.integers(),
        "usage": st.dictionaries(
            st.sampled_from(["prompt_tokens", "input_tokens", "completion_tokens"]), scalars
        ),
        "model": st.sampled_from(["m", "alias", "other"]),
        "extra": values,
    },
)
jsons = st.builds(
    lambda value, indent, ascii_only: json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode(
        "utf-8", "surrogatepass"
    ),
    near_answers | values,
    st.sampled_from([None, 1]),
    st.booleans(),
)
torn = st.builds(lambda body, cut, junk: body[:cut] + junk, jsons, st.integers(0, 300), st.binary(max_size=3))
answers = st.builds(
    Answer,
    status=st.sampled_from([200, 201, 400, 401, 404, 413, 422, 429, 500, 501, 502, 503, 504])
    | st.integers(0, 999),
    body=jsons | torn | st.binary(max_size=200),
    content_type=st.sampled_from(["application/json", "text/html", "text/event-stream", ""]),
    request_id=st.none() | st.text(max_size=5),
    retry_after_s=st.none() | st.floats(0, 600),
)
requests = st.builds(
    Request,
    index=st.just(0),
    custom_id=st.just("a"),
    url=st.sampled_from(ROUTES),
    model=st.sampled_from(["m", "alias", None]),
    body=st.just(b"{}"),
)
models = st.none() | st.dictionaries(st.sampled_from(["m", "alias"]), st.sampled_from(["root", "other root"]))

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be shared


def strict(body: bytes) -> object:
    """Decode as RFC 8259 has it: UTF-8, no NaN, no Infinity."""
    return json.loads(body.decode(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def assert_is_well_formed(judgement: Judgement) -> None:
    assert (judgement.code is None) == (judgement.verdict is Verdict.SUCCESS)
    assert bool(judgement.message) == (judgement.code is not None)
    assert len(judgement.message.encode()) <= TEXT_BYTES_MAX
    assert not judgement.hard or judgement.verdict is Verdict.SERVER_FAULT
    if judgement.body is not None:
        assert b"\n" not in judgement.body
        assert b"\r" not in judgement.body
        strict(judgement.body)
        assert judgement.code is None or len(judgement.body) <= TEXT_BYTES_MAX


@unhurried
@given(answers, requests, models, st.sampled_from([None, True, False]))
def test_any_answer_gets_a_well_formed_judgement(answer, request, names, healthy):
    judgement = judge(answer, request, names, healthy=healthy)
    assert_is_well_formed(judgement)
    assert judgement.status == answer.status
    assert judgement.verdict is not Verdict.SUCCESS or 200 <= answer.status < 300
    assert judgement.verdict is not Verdict.SUCCESS or isinstance(strict(judgement.body), dict)


@unhurried
@given(st.sampled_from(BreakKind), st.text(st.characters(exclude_categories=())), requests, models)
def test_any_break_gets_a_well_formed_judgement(kind, detail, request, names):
    judgement = judge(Break(kind, detail), request, names)
    assert_is_well_formed(judgement)
    assert judgement.verdict is not Verdict.SUCCESS


@unhurried
@given(st.lists(choices, min_size=1, max_size=3), values, st.sampled_from([None, 1]))
def test_a_whole_answer_keeps_its_content(given_choices, extra, indent):
    whole = [{**choice, "finish_reason": "stop"} for choice in given_choices]
    answer = {"choices": whole, "extra": extra}
    body = json.dumps(answer, indent=indent).encode()
    judgement = judge(Answer(200, body), Request(0, "a", "/v1/chat/completions", None, b"{}"), None)
    assert judgement.verdict is Verdict.SUCCESS
    assert strict(judgement.body) == cleaned(answer)


def cleaned(value: object) -> object:
    """What strict JSON can say of a value: no NaN, no Infinity, no lone surrogate."""
    match value:
        case float() if value != value or value in (float("inf"), -float("inf")):  # noqa: PLR0124 - NaN
            return None
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case list():
            return [cleaned(item) for item in value]
        case dict():
            return {cleaned(key): cleaned(item) for key, item in value.items()}
        case _:
            return value

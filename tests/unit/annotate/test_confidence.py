"""Labels with the probability of each, from answers that are a row's requests."""

import json
from collections import Counter

import msgspec
import pytest
from toy_model import ToyModel

from dispatcher.annotate.answers import read_body
from dispatcher.annotate.confidence import ConfidenceReview, LabelWithConfidence
from dispatcher.model import AgainReason, Judgement, Request, Verdict
from dispatcher.ports import Asked, Counted, Unfinished, Unusable
from dispatcher.vllm.scoring import Method, classify
from dispatcher.vllm.scoring.labels import label_set

MESSAGES = [{"role": "user", "content": "x"}]
LABELS = ["abc", "abd", "c", "é", "è"]
MERGES = ["ab", "bc", "c"]


def judged(answer):
    return Judgement(Verdict.SUCCESS, body=json.dumps(answer).encode())


class Row:
    """One row's questions to a model, as a node asks them."""

    def __init__(self, model, review, labels=LABELS, *, index=0, named=None, messages=MESSAGES, **more):
        body = {"messages": messages, **more, **LabelWithConfidence(labels).constraint}
        self.request = Request(index, "0", "/v1/chat/completions", named, msgspec.json.encode(body))
        self.kind = LabelWithConfidence(labels)
        self.model, self.review = model, review
        self.asked, self.finding = Asked(), None

    async def step(self):
        answer = await self.model.post(self.request.url, json.loads(self.request.body))
        self.finding = self.review(self.request, judged({**answer, "model": "toy", "id": "x"}), self.asked)
        if isinstance(self.finding, Unfinished):
            self.request, self.asked = self.finding.again, Asked(notes=self.finding.notes)
            return True
        return False

    async def values(self):
        while await self.step():
            pass
        return self.read(self.finding.body)

    def read(self, body):
        return self.kind.read(read_body(body).content, cut=False)


def review_of(method, labels=LABELS, **more):
    return ConfidenceReview(label_set(labels), method, 3, **more)


@pytest.mark.parametrize(
    "method", [Method(), Method(max_calls=None, unresolved_max=0.0), Method(max_calls=1)]
)
async def test_the_distribution_is_that_of_the_client(method):
    values = await Row(ToyModel(MERGES), review_of(method)).values()
    expected = await classify(ToyModel(MERGES), MESSAGES, LABELS, method=method)
    assert values == {
        "": expected.label,
        "probabilities": expected.probabilities,
        "confidence": expected.probabilities[expected.label],
        "coverage": expected.coverage,
        "approximate": expected.approximate,
    }


async def test_a_row_takes_one_request_where_one_is_enough_and_the_texts_of_tokens_are_known():
    model, review = ToyModel(["yes", "no"]), review_of(Method(), ["yes", "no"])
    for index in range(2):
        await Row(model, review, ["yes", "no"], index=index).values()
    assert model.posts["/v1/chat/completions"] == 2
    assert len(model.posts) == 3
    before = model.posts.copy()
    await Row(model, review, ["yes", "no"]).values()
    assert model.posts - before == Counter({"/v1/chat/completions": 1})


async def test_rows_that_begin_together_share_the_work_of_finding_out_what_tokens_are():
    model, review = ToyModel(["yes", "no"]), review_of(Method(), ["yes", "no"])
    rows = [Row(model, review, ["yes", "no"], index=index) for index in range(20)]
    while rows:
        rows = [row for row in rows if await row.step()]
    alone = ToyModel(["yes", "no"])
    await Row(alone, review_of(Method(), ["yes", "no"]), ["yes", "no"]).values()
    texts = alone.posts["/detokenize"] - 1
    assert model.posts["/detokenize"] <= 20 * 3, "a row asks at most one text of its own, and the anchor's"
    assert texts >= 4


async def test_further_questions_go_to_the_model_that_answered_first():
    row = Row(ToyModel(MERGES), review_of(Method()))
    assert await row.step()
    assert (row.request.model, json.loads(row.request.body)["model"]) == ("toy", "toy")


async def at(url):
    """A row whose next question is for this route, after some of its answers."""
    row = Row(ToyModel(MERGES), review_of(Method()))
    while await row.step():
        if row.request.url == url:
            return row
    raise AssertionError(url)


async def test_what_is_known_stands_where_a_further_answer_is_of_no_use():
    row = await at("/v1/completions")
    so_far = row.read(row.finding.so_far)
    assert so_far["approximate"]
    counted = row.review(row.request, judged({"choices": []}), row.asked)
    assert isinstance(counted, Counted)
    assert row.read(counted.body) == so_far


async def test_nothing_is_known_before_the_texts_of_the_first_tokens_are():
    row = await at("/detokenize")
    assert row.finding.so_far is None
    finding = row.review(row.request, judged({}), row.asked)
    assert isinstance(finding, Unusable)
    assert finding.again is None


def answered(message, logprobs=None):
    return judged({"choices": [{"message": message, "logprobs": logprobs}]})


@pytest.mark.parametrize(
    ("answer", "said", "again"),
    [
        (answered({"content": "maybe"}), "ignores the constraint", True),
        (answered({"content": "", "reasoning": "hm"}), "enable_thinking", False),
        (answered({"content": "abc"}), "no log-probabilities", False),
        (Judgement(Verdict.SUCCESS, body=b"[]"), "cannot be read", False),
    ],
)
def test_an_answer_that_tells_no_distribution_is_told(answer, said, again):
    row = Row(ToyModel(), review_of(Method()))
    finding = row.review(row.request, answer, Asked())
    assert isinstance(finding, Unusable)
    assert said in finding.message
    assert (finding.again is not None) == again
    assert row.review(row.request, answer, Asked(times=3)).again is None


async def test_a_label_that_the_caller_refuses_is_refused_once():
    def valid(label):
        raise ValueError(f"not {label}")

    row = Row(ToyModel(["yes", "no"]), review_of(Method(), ["yes", "no"], valid=valid), ["yes", "no"])
    while await row.step():
        pass
    assert isinstance(row.finding, Unusable)
    assert (row.finding.again, row.finding.reason) == (None, AgainReason.REFUSED)


async def test_of_images_only_one_answer_is_asked_for():
    class Seeing(ToyModel):
        def prompt(self, messages, *, continued=False):  # noqa: ARG002 - as the toy has it
            return "image"

    model = Seeing(MERGES)
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    values = await Row(model, review_of(Method()), messages=image).values()
    assert (values["approximate"], model.generations) == (True, 1)


async def test_what_changes_the_prompt_is_told_to_the_tokenizer_as_well():
    model, switches = ToyModel(MERGES), {"enable_thinking": False}
    await Row(model, review_of(Method()), chat_template_kwargs=switches, top_k=3).values()
    (asked,) = [body for path, body in model.bodies if path == "/tokenize" and "messages" in body]
    assert asked == {"messages": MESSAGES, "chat_template_kwargs": switches, "model": "toy"}


async def test_where_the_tokenizer_could_not_be_told_one_answer_has_to_do():
    model = ToyModel(MERGES)
    values = await Row(model, review_of(Method()), reasoning_effort="none").values()
    assert (values["approximate"], model.generations) == (True, 1)


def chat(*places):
    """A chat answer whose text is a label, with these tokens."""
    content = [{"token": token, "logprob": value, "top_logprobs": top} for token, value, top in places]
    return {"choices": [{"message": {"content": "abc"}, "logprobs": {"content": content}}]}


def lists(tokens, values, tops):
    logprobs = {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops}
    return {"choices": [{"index": 0, "logprobs": logprobs}]}


ODD = [
    {},
    {"choices": None},
    {"choices": [{}]},
    {"tokens": "a"},
    {"tokens": [-1]},
    {"prompt": None},
    {"prompt": "\ufffd"},
    chat(),
    chat(("abc", -1.0, [])),
    chat(("token_id:1", None, [])),
    chat(("token_id:1", -1.0, [{"token": "token_id:2", "logprob": None}])),
    chat(("token_id:1", 1e308, [])),
    chat(("token_id:99999999999999999999", -1.0, [])),
    lists(["token_id:1"], [], None),
    lists(["token_id:1"], [-1.0], [{"token_id:2": 1e308}]),
    lists(["x"], [-1.0], [None]),
    lists([], [], []),
]


@pytest.mark.parametrize("answer", ODD, ids=repr)
@pytest.mark.parametrize("url", ["/v1/chat/completions", "/tokenize", "/detokenize", "/v1/completions"])
async def test_whatever_a_server_answers_is_an_answer_of_no_use_at_worst(url, answer):
    row = Row(ToyModel(MERGES), review_of(Method())) if url.endswith("chat/completions") else await at(url)
    found = row.review(row.request, judged(answer), row.asked)
    assert isinstance(found, Unusable | Unfinished | Counted)
    while isinstance(found, Unfinished):
        row.request, row.asked = found.again, Asked(notes=found.notes)
        found = row.review(row.request, judged({}), row.asked)
    assert isinstance(found, Unusable | Counted)

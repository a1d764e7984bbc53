"""What a tracer and the log are told of attempts, in virtual time."""

import asyncio
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from dispatcher.model import Answer, ErrorCode, Judgement, Verdict
from dispatcher.ports import Sent


@dataclass(eq=False)
class KeptSpan:
    """A span as a test looks at it."""

    sent: Sent
    parent: dict
    headers: dict
    ends: list = field(default_factory=list)

    def end(self, judgement):
        self.ends.append(judgement)

    @property
    def verdict(self):
        judged = [judgement.verdict for judgement in self.ends if judgement is not None]
        return judged[0] if judged else None


class KeptTracer:
    """A tracer that keeps everything."""

    def __init__(self):
        self.spans = []

    def begin(self, sent, parent):
        span = KeptSpan(sent, dict(parent), {"traceparent": f"00-{len(self.spans):032x}-1-01"})
        self.spans.append(span)
        return span

    def of_row(self, index):
        return [span for span in self.spans if span.sent.index == index]


@pytest.fixture
def tracer():
    return KeptTracer()


async def test_every_attempt_is_begun_once_and_ended_with_its_verdict(bench, tracer):
    async with bench(rows=10, tracer=tracer) as b:
        await b.run()
        assert sorted(span.sent.index for span in tracer.spans) == list(range(10))
        assert {span.verdict for span in tracer.spans} == {Verdict.SUCCESS}
        assert [span.sent.request_id for span in tracer.spans] == b.network.request_ids
        assert {(span.sent.job, span.sent.route, span.sent.model) for span in tracer.spans} == {
            ("job", "/v1/chat/completions", "m")
        }


async def test_the_wait_for_a_permit_is_told_and_nothing_else(bench, tracer):
    async with bench(rows=3, servers=("a",), pool={"limit": 1}, tracer=tracer) as b:
        await b.run()
        first, second, third = sorted(span.sent.queue_s for span in tracer.spans)
        assert second - first == pytest.approx(1.0, abs=0.01)  # each answer takes a second
        assert third - second == pytest.approx(1.0, abs=0.01)


async def test_later_attempts_are_children_of_the_first_and_wait_from_when_they_were_ready(bench, tracer):
    async with bench(rows=1, tracer=tracer, job={"max_attempts": 3}) as b:
        for name in ("a", "b"):
            b.server(name).ending = Answer(500, b"")
        await b.run()
        first, *later = tracer.of_row(0)
        assert (first.parent, len(later)) == ({}, 2)
        assert [span.parent for span in later] == [first.headers, first.headers]
        assert [span.sent.sends for span in (first, *later)] == [1, 2, 3]
        assert {span.verdict for span in (first, *later)} == {Verdict.DOUBTFUL}
        assert all(span.sent.queue_s < 0.3 for span in later), "neither the send before nor the pause counts"


async def test_a_copy_is_told_as_one_and_the_attempt_that_came_too_late_is_not_judged(bench, tracer):
    async with bench(rows=2, shard_size=2, tracer=tracer, pool={"limit": 1}) as b:
        b.server("a").takes_s = 3600.0
        await b.run()
        copies = [span for span in tracer.spans if span.sent.is_copy]
        assert [(copy.verdict, copy.sent.queue_s) for copy in copies] == [(Verdict.SUCCESS, 0.0)]
        (original,) = [span for span in tracer.of_row(copies[0].sent.index) if not span.sent.is_copy]
        assert copies[0].parent == original.headers
        assert original.verdict is None
        assert original.ends


async def test_a_stop_leaves_no_span_open(bench, tracer):
    async with bench(rows=5, tracer=tracer) as b:
        running = asyncio.create_task(b.run())
        await asyncio.sleep(0.5)
        b.node.stop()
        await running
        assert len(tracer.spans) == 5
        assert [span.ends[0] for span in tracer.spans] == [None] * 5


def failures(logs):
    return [entry for entry in logs if entry["event"] == "attempt_failed"]


async def test_a_failed_attempt_is_logged_with_its_ids_and_without_what_was_said(bench):
    with capture_logs() as logs:
        async with bench(rows=1, servers=("a",), job={"max_attempts": 2}) as b:
            b.server("a").ending = Answer(500, b"")
            await b.run()
            ids = b.network.request_ids
    assert failures(logs) == [
        {
            "event": "attempt_failed",
            "log_level": "debug",
            "job": "job",
            "custom_id": "row-0",
            "request_id": request_id,
            "server": "a",
            "verdict": "doubtful",
            "reason": "HTTP 500: doubtful",
        }
        for request_id in ids
    ]
    assert len(ids) == 2


async def test_what_was_said_is_logged_where_it_is_asked_for_and_cut(bench):
    with capture_logs() as logs:
        async with bench(rows=1, servers=("a",), job={"max_attempts": 1}, log_prompts=True) as b:
            b.server("a").ending = Answer(500, b"")
            await b.run()
    (told,) = failures(logs)
    assert (told["reason"], told["body"]) == ("HTTP 500", "xx")


async def test_a_success_is_not_logged(bench):
    with capture_logs() as logs:
        async with bench(rows=5) as b:
            await b.run()
    assert failures(logs) == []


@pytest.mark.parametrize(
    ("judgement", "told"),
    [
        (Judgement(Verdict.DOUBTFUL, message="row said: my secret", status=500), "HTTP 500: doubtful"),
        (Judgement(Verdict.SERVER_FAULT, message="refused: ECONNREFUSED"), "refused: ECONNREFUSED"),
        (
            Judgement(Verdict.DOUBTFUL, ErrorCode.INVALID_RESPONSE, "not HTTP: BadStatusLine: my secret"),
            "not HTTP",
        ),
    ],
)
def test_a_judgement_is_told_plainly_without_a_server_s_words(judgement, told):
    assert judgement.plainly == told

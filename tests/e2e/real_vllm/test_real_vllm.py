"""The real command against real vLLM servers: engines that die, freeze, come back, or serve another model."""

import random

import pytest
from real_job import CONCURRENCY, PROBE_EVERY_S, PROBE_TIMEOUT_S
from real_rows import EMBEDDINGS, LABELS, TOKENIZE, hopeless, long_texts, mixed
from vllm_fleet import LATE, READY_S_MAX, until

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

NEW = "tiny-new"
"""What no server serves until one comes back with it."""
NEW_ROWS = {row.name for row in long_texts(10, tokens=5, model=NEW)}
EVICTED_WITHIN_S = 2 * PROBE_EVERY_S + PROBE_TIMEOUT_S
"""A refused probe, its own time included, and a second for a busy machine."""
STALL_S = 5
SLACK_S = 3.0
"""What a busy machine may add."""


def assert_outcomes(job):
    """Every row has its one outcome: the expected error, or an answer that fits its route."""
    job.verify()
    failed = {name: outcome["error"]["code"] for name, outcome in job.failures().items()}
    assert failed == {row.name: row.fails_as for row in job.rows if row.fails_as}
    answers = job.answers()
    for row in job.rows:
        if row.fails_as is None:
            assert_fits(row, answers[row.name]["response"]["body"])


def assert_fits(row, body):
    if row.url == TOKENIZE:
        assert body["count"] == len(body["tokens"]) > 0
    elif row.url == EMBEDDINGS:
        assert len(body["data"][0]["embedding"]) == 128
    else:
        assert body["usage"]["prompt_tokens"] > 0
    if row.name.startswith("choice"):
        assert body["choices"][0]["message"]["content"] in LABELS


def of_engines(job, recorded):
    """Of these recorded outcomes, those that are answers of an engine."""
    generating = {row.name for row in job.rows if row.generates}
    return sum(ok and name in generating for name, ok in recorded.items())


def test_no_finished_row_is_sent_again_after_three_kills_of_the_dispatcher(fleet, new_job):
    """What an engine has answered and no journal holds is sent again; anything else would be a waste.

    At a kill that is at most what was in flight and what had come in since the last write: `in_flight`
    twice over, as a write takes no longer than an answer. The last run has no such excuse: it sends exactly
    the rows that the journals lack. (It makes no copies of slow rows: those would be answered twice.)
    """
    dice = random.Random(20260731)
    job = new_job(mixed(500), fleet.working, hedge=False)
    in_flight = CONCURRENCY * len(fleet.working)
    before, finished = {}, fleet.finished()
    for share in (0.1, 0.35, 0.6):
        job.start()
        wanted = int((share + dice.uniform(0, 0.2)) * len(job.rows))
        until(lambda wanted=wanted: len(job.recorded()) >= wanted, 90, f"{wanted} rows recorded")
        job.kill()
        after, now = job.recorded(), fleet.finished()
        assert before.items() <= after.items()
        answered = of_engines(job, after) - of_engines(job, before)
        canaries = len(fleet.working)
        figures = f"{now - finished} answers at {len(after)} rows, {answered} of them recorded"
        assert answered <= now - finished <= answered + canaries + 2 * in_flight, figures
        before, finished = after, now
    job.start()
    assert job.ended(120) == 0, job.tail()
    assert_outcomes(job)
    left = sum(row.generates for row in job.rows) - of_engines(job, before)
    assert fleet.finished() - finished == left + len(fleet.working)


def test_a_drain_waits_for_no_frozen_engine_and_loses_nothing(fleet, new_job):
    job = new_job(long_texts(60, tokens=200), [fleet.first, fleet.second], stall_s=STALL_S)
    job.start()
    until(lambda: len(job.recorded()) >= CONCURRENCY, 60, "the first rows recorded")
    fleet.first.freeze_engine()
    try:
        until(lambda: job.total("server_in_flight", fleet.first) > 0, 5, "requests at the frozen engine")
        job.terminate()
        assert job.ended(STALL_S + EVICTED_WITHIN_S + 2 * SLACK_S) == 3, job.tail()
    finally:
        fleet.first.thaw_engine()
    recorded = job.recorded()
    assert 0 < len(recorded) < len(job.rows)
    finished = fleet.finished()
    job.start()
    assert job.ended(90) == 0, job.tail()
    assert_outcomes(job)
    assert fleet.finished() - finished == len(job.rows) - len(recorded) + 2


def test_a_frozen_engine_is_evicted_within_the_stall_and_readmitted_after_a_canary(fleet, new_job):
    rows = [*long_texts(80, tokens=150), *long_texts(4, tokens=5, model=LATE)]
    job = new_job(rows, [fleet.first, fleet.second], stall_s=STALL_S)
    job.start()
    until(lambda: len(job.recorded()) >= CONCURRENCY, 60, "the first rows recorded")
    until(lambda: job.total("server_in_flight", fleet.first) > 0, 5, "requests at the first server")
    fleet.first.freeze_engine()
    try:
        job.until("evictions_total", 1, STALL_S + EVICTED_WITHIN_S + SLACK_S, server=fleet.first)
        assert job.total("server_in_flight", fleet.first) == 0
        until(lambda: len(job.recorded()) >= 80, 60, "the rows of the frozen engine done by the other")
        assert job.total("readmissions_total", fleet.first) == 0
    finally:
        fleet.first.thaw_engine()
    assert job.ended(60) == 0, job.tail()
    assert_outcomes(job)


def test_500_rows_complete_though_an_engine_is_killed_and_another_dies_of_its_first_request(fleet, new_job):
    late = long_texts(20, tokens=10, model=LATE)
    rows = [*mixed(471), *hopeless(), *late]
    assert len(rows) == 500
    job = new_job(rows, fleet.all)
    job.start()
    until(lambda: len(job.recorded()) >= 150, 180, "150 rows recorded")
    fleet.first.kill_engine()
    job.until("evictions_total", 1, 10, server=fleet.first)
    fleet.first.stop()
    fleet.first.start()
    job.until("readmissions_total", 1, READY_S_MAX, server=fleet.first)
    assert job.total("evictions_total", fleet.first) == 1
    assert job.total("evictions_total", fleet.second) == 0
    assert job.total("attempts_total", fleet.crashing) == 0
    assert job.ended(90) == 1, job.tail()
    assert_outcomes(job)
    assert len(fleet.crashing.posts()) == 1, "its canary, and no row"
    assert_sends(job)


def assert_sends(job):
    """A row's own fault costs it one send, or three where the server does not say whose fault it is."""
    sends = {name: outcome["provenance"]["attempts"] for name, outcome in job.failures().items()}
    unsure = {"regex": 3, "wrong-route": 3}
    assert sends == {name: unsure.get(name, 1) for name in sends}


def test_a_terminated_server_costs_nothing_and_gets_no_row_when_it_serves_another_model(fleet, new_job):
    """Terminated with requests in flight, a vLLM closes its listener and lets open connections hang.

    The one that comes back at its address serves only the rows that were waiting for it; all others must wait
    for the first server, whose engine is frozen for as long, although the newcomer is idle.
    """
    others = long_texts(200, tokens=200)
    rows = [*long_texts(10, tokens=5, model=NEW), *others]
    job = new_job(rows, [fleet.first, fleet.second], stall_s=STALL_S)
    job.start()
    until(lambda: len(job.recorded()) >= CONCURRENCY, 60, "the first rows recorded")
    until(lambda: job.total("server_in_flight", fleet.second) > 0, 5, "requests at the second server")
    fleet.second.terminate()
    job.until("evictions_total", 1, EVICTED_WITHIN_S, server=fleet.second)
    assert job.total("server_in_flight", fleet.second) == 0
    fleet.first.freeze_engine()
    try:
        fleet.second.stop()
        fleet.second.names = ("other", NEW)
        fleet.second.start()
        until(lambda: job.recorded().keys() & NEW_ROWS == NEW_ROWS, READY_S_MAX, "the rows of the newcomer")
        assert len(job.recorded()) < len(job.rows)
    finally:
        fleet.first.thaw_engine()
    assert job.ended(90) == 0, job.tail()
    assert_outcomes(job)
    assert fleet.second.finished() == 10 + 1, "the rows that it serves, and its canary"

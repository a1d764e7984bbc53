from itertools import product

import pytest

from dispatcher.jobs.life import (
    ENDED,
    STOPPABLE,
    Event,
    IllegalMoveError,
    Stage,
    move,
    queue_status,
    shown,
    unfinished_as,
)
from dispatcher.model import ErrorCode
from dispatcher.queue.records import JobStatus

OPENAI = {
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
}


def moves_from(stage):
    moves = {}
    for event in Event:
        try:
            moves[event] = move(stage, event)
        except IllegalMoveError:
            continue
    return moves


@pytest.mark.parametrize(
    ("stage", "event", "why"),
    [
        (Stage.COMPLETED, Event.CANCEL, "a job that is completed cannot be cancelled"),
        (Stage.IN_PROGRESS, Event.RETRY, "a job that is in_progress cannot be retried"),
    ],
)
def test_what_a_user_asks_too_late_or_too_early_is_refused_in_words(stage, event, why):
    with pytest.raises(IllegalMoveError, match=f"^{why}$"):
        move(stage, event)


def test_a_job_without_trouble_goes_from_validating_to_completed():
    stages = [Stage.VALIDATING, Stage.IN_PROGRESS, Stage.FINALIZING, Stage.COMPLETED]
    events = (Event.VALIDATED, Event.DRAINED, Event.WRITTEN)
    assert [move(stage, event) for stage, event in zip(stages, events, strict=False)] == stages[1:]


@pytest.mark.parametrize(
    ("event", "stages"),
    [
        (Event.CANCEL, [Stage.CANCELLING, Stage.CANCELLED]),
        (Event.EXPIRE, [Stage.EXPIRING, Stage.EXPIRED]),
    ],
)
def test_what_can_be_stopped_ends_as_what_stopped_it(event, stages):
    for stage in STOPPABLE:
        stopping = move(stage, event)
        assert [stopping, move(stopping, Event.WRITTEN)] == stages


def test_only_what_is_read_or_sent_can_be_stopped():
    able = {stage for stage in Stage if Event.CANCEL in moves_from(stage)}
    assert able == STOPPABLE == {stage for stage in Stage if Event.EXPIRE in moves_from(stage)}


def test_from_every_stage_but_the_ended_ones_something_leads_on():
    for stage in Stage:
        assert bool(moves_from(stage).keys() - {Event.RETRY}) is (stage not in ENDED)


def test_only_what_has_outcomes_and_has_ended_can_be_retried():
    able = {stage for stage in Stage if Event.RETRY in moves_from(stage)}
    assert able == ENDED - {Stage.FAILED}


def test_only_a_job_in_progress_that_is_not_paused_is_leased():
    active = {
        (stage, paused)
        for stage, paused in product(Stage, (False, True))
        if queue_status(stage, paused=paused) is JobStatus.ACTIVE
    }
    assert active == {(Stage.IN_PROGRESS, False)}


def test_every_stage_is_shown_as_a_status_of_openais_and_every_status_is_used():
    assert {shown(stage) for stage in Stage} == OPENAI


def test_only_what_was_stopped_may_lack_outcomes():
    codes = {stage: made[0] for stage in Stage if (made := unfinished_as(stage)) is not None}
    assert codes == {
        Stage.CANCELLING: ErrorCode.BATCH_CANCELLED,
        Stage.EXPIRING: ErrorCode.BATCH_EXPIRED,
    }

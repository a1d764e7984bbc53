"""A job's life: where it may be, and what moves it. Pure."""

from enum import StrEnum, auto
from typing import Final, assert_never

from dispatcher.model import ErrorCode
from dispatcher.queue.records import JobStatus


class Stage(StrEnum):
    """Where a job is."""

    VALIDATING = auto()  # its input is being read
    IN_PROGRESS = auto()  # its requests are being sent, unless it is paused
    REOPENING = auto()  # its failed outcomes are being taken back
    CANCELLING = auto()  # what is open is being closed, then what is finished is written
    EXPIRING = auto()  # the same, for its time is over
    FINALIZING = auto()  # every request has its outcome; they are being written
    COMPLETED = auto()
    FAILED = auto()  # its input is not valid
    CANCELLED = auto()
    EXPIRED = auto()


class Event(StrEnum):
    """What happens to a job."""

    VALIDATED = auto()
    REFUSED = auto()
    DRAINED = auto()
    CANCEL = auto()
    EXPIRE = auto()
    WRITTEN = auto()
    RETRY = auto()
    REOPENED = auto()


class IllegalMoveError(Exception):
    """What was asked of a job is not to be had where it is."""


_ASKED: Final = {Event.CANCEL: "be cancelled", Event.RETRY: "be retried"}

_MOVES: Final = {
    (Stage.VALIDATING, Event.VALIDATED): Stage.IN_PROGRESS,
    (Stage.VALIDATING, Event.REFUSED): Stage.FAILED,
    (Stage.VALIDATING, Event.CANCEL): Stage.CANCELLING,
    (Stage.VALIDATING, Event.EXPIRE): Stage.EXPIRING,
    (Stage.IN_PROGRESS, Event.DRAINED): Stage.FINALIZING,
    (Stage.IN_PROGRESS, Event.CANCEL): Stage.CANCELLING,
    (Stage.IN_PROGRESS, Event.EXPIRE): Stage.EXPIRING,
    (Stage.REOPENING, Event.REOPENED): Stage.IN_PROGRESS,
    (Stage.FINALIZING, Event.WRITTEN): Stage.COMPLETED,
    (Stage.CANCELLING, Event.WRITTEN): Stage.CANCELLED,
    (Stage.EXPIRING, Event.WRITTEN): Stage.EXPIRED,
    (Stage.COMPLETED, Event.RETRY): Stage.REOPENING,
    (Stage.CANCELLED, Event.RETRY): Stage.REOPENING,
    (Stage.EXPIRED, Event.RETRY): Stage.REOPENING,
}

ENDED: Final = frozenset({Stage.COMPLETED, Stage.FAILED, Stage.CANCELLED, Stage.EXPIRED})
"""Nothing more happens to these of itself."""
STOPPABLE: Final = frozenset({Stage.VALIDATING, Stage.IN_PROGRESS})
"""Those that can be cancelled, and that expire."""
STOPPED: Final = frozenset({Stage.CANCELLING, Stage.CANCELLED})


def move(stage: Stage, event: Event) -> Stage:
    """Where the event leads. Raises IllegalMoveError where there is no such move."""
    after = _MOVES.get((stage, event))
    if after is None:
        raise IllegalMoveError(f"a job that is {stage} cannot {_ASKED.get(event, f'be moved by {event}')}")
    return after


def queue_status(stage: Stage, *, paused: bool) -> JobStatus:
    """What the queue is to think of a job: only an active one's shards are leased."""
    match stage:
        case Stage.VALIDATING | Stage.REOPENING:
            return JobStatus.PREPARING
        case Stage.IN_PROGRESS:
            return JobStatus.PAUSED if paused else JobStatus.ACTIVE
        case Stage.CANCELLING | Stage.EXPIRING | Stage.CANCELLED | Stage.EXPIRED:
            return JobStatus.CANCELLED
        case Stage.FINALIZING | Stage.COMPLETED | Stage.FAILED:
            return JobStatus.FINISHED
        case _:
            assert_never(stage)


def shown(stage: Stage) -> str:
    """The stage as a batch's `status` of OpenAI's, which has no word for two of ours."""
    match stage:
        case Stage.REOPENING:
            return Stage.IN_PROGRESS.value
        case Stage.EXPIRING:
            return Stage.FINALIZING.value
        case _:
            return stage.value


def unfinished_as(stage: Stage) -> tuple[ErrorCode, str] | None:
    """What becomes of requests without an outcome when the job is written; None: there must be none."""
    if stage is Stage.CANCELLING:
        return ErrorCode.BATCH_CANCELLED, "the batch was cancelled before this request was finished"
    if stage is Stage.EXPIRING:
        return ErrorCode.BATCH_EXPIRED, "the batch's completion window ended before this request was finished"
    return None

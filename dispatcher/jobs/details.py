"""What is kept with a job in the queue's row, beside what the queue itself knows."""

from typing import Any

import msgspec

from dispatcher.jobs.life import Stage, queue_status
from dispatcher.model import Tally
from dispatcher.queue.records import JobStatus


class LineError(msgspec.Struct, frozen=True):
    """Why an input is not valid."""

    code: str
    message: str
    line: int | None = None
    """From 1; None where it is about the whole file."""


class Made(msgspec.Struct, frozen=True):
    """The files that a job's outcomes are written to; their names are known before they are written."""

    output: str
    errors: str

    @property
    def names(self) -> set[str]:
        """Both."""
        return {self.output, self.errors}


class TokenDetails(msgspec.Struct, frozen=True):
    """What servers told of tokens beside their number, summed up; None where none of them told."""

    cached: int | None = None
    """Prompt tokens that were in a server's cache."""
    reasoning: int | None = None
    """Generated tokens that were no answer yet."""


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds since the epoch."""

    owner: str
    input_file_id: str
    endpoint: str
    completion_window: str
    window_s: float
    expires_at: float
    stage: Stage = Stage.VALIDATING
    paused: bool = False
    metadata: dict[str, str] | None = None
    output_expires_s: int | None = None
    rows_max: int | None = None
    """How many rows its owner may have queued, this job's included; None: any number."""
    model: str | None = None
    """The one model that its requests name, or the job's own for those that name none."""
    reached: dict[str, float] = {}
    """When each stage was reached last, by its name."""
    making: Made | None = None
    """Set while outcomes are being written."""
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: tuple[LineError, ...] = ()
    result: Tally | None = None
    """What the written outcomes add up to, those of requests that were not finished included."""
    token_details: TokenDetails = TokenDetails()
    """Of the written outcomes as well."""

    def at(self, stage: Stage) -> float | None:
        """When the stage was reached last."""
        return self.reached.get(stage.value)


def moved(details: Details, stage: Stage, now: float) -> Details:
    """The details of a job that reaches a stage now."""
    reached = {**details.reached, stage.value: now}
    return msgspec.structs.replace(details, stage=stage, reached=reached)


def status_of(details: Details) -> JobStatus:
    """What the queue is to think of the job."""
    return queue_status(details.stage, paused=details.paused)


def stored(details: Details) -> dict[str, Any]:
    """As the queue keeps them, and gives them back."""
    kept: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(details))
    return kept


def read_details(kept: object) -> Details | None:
    """As the queue kept them. None where the job is not the service's."""
    try:
        return msgspec.convert(kept, Details)
    except msgspec.ValidationError:
        return None

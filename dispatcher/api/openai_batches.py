"""OpenAI's Batches: `/v1/batches`.

Source of fields and limits: https://platform.openai.com/docs/api-reference/batch. Unlike there, a completion
window may be any time up to a year, and there is no limit of 50,000 requests. `priority`, `weight`, `model`,
`max_attempts` and `limit` are our own fields, for `extra_body`.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from aiohttp import web

from dispatcher.api.auth import principal_of
from dispatcher.api.bodies import read_record
from dispatcher.api.context import Context, context_of
from dispatcher.api.errors import ApiError
from dispatcher.api.keyring import Principal
from dispatcher.api.openai_files import expiry_s
from dispatcher.api.paging import BAD_REQUEST, answer, limit_of, page, scope_of
from dispatcher.jobs.details import LineError
from dispatcher.jobs.jobs import NewJob
from dispatcher.jobs.life import IllegalMoveError, Stage
from dispatcher.jobs.view import JobView
from dispatcher.jobs.windows import window_s
from dispatcher.model import Job, JobId
from dispatcher.queue.keeping import FileRecord
from dispatcher.request_line import ROUTES

NOT_FOUND, CONFLICT = 404, 409
LIST_DEFAULT, LIST_MAX = 20, 100
METADATA_KEYS_MAX, KEY_CHARACTERS_MAX, VALUE_CHARACTERS_MAX = 16, 64, 512
PRIORITY_MAX = 1_000_000

Priority = Annotated[int, msgspec.Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]
Weight = Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


def routes() -> Iterable[web.RouteDef]:
    """The routes of this module."""
    return (
        web.post("/v1/batches", create),
        web.get("/v1/batches", list_batches),
        web.get("/v1/batches/{batch_id}", get_batch),
        web.post("/v1/batches/{batch_id}/cancel", cancel),
    )


class Expiry(msgspec.Struct):
    """When made files are to be deleted."""

    anchor: str
    seconds: int


class NewBatch(msgspec.Struct):
    """What a batch is made of. Fields that are not known are ignored, as OpenAI's clients may be newer."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: Expiry | None = None
    priority: Priority = 0
    weight: Weight = 1.0
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] | None = None
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    limit: Limit | None = None


async def create(request: web.Request) -> web.Response:
    """Make a batch of an uploaded file: it is validated, and run."""
    wanted = await read_record(request, NewBatch)
    context = context_of(request)
    seconds = _check(wanted)
    record = await context.files.get(wanted.input_file_id, scope_of(request))
    if record is None:
        raise _invalid("input_file_id", f"No such File object: {wanted.input_file_id[:64]}")
    principal = principal_of(request)
    new = _new_job(wanted, record, principal, seconds, context)
    async with context.admission.one_more(principal, context.jobs):
        return answer(batch_object(await context.jobs.create(new)))


async def list_batches(request: web.Request) -> web.Response:
    """A page of batches, the latest first."""
    limit = limit_of(request, default=LIST_DEFAULT, maximum=LIST_MAX)
    after, jobs = request.query.get("after"), context_of(request).jobs
    found = jobs.list(scope_of(request), after=after, limit=limit + 1)
    return page([batch_object(view) for view in found[:limit]], has_more=len(found) > limit)


async def get_batch(request: web.Request) -> web.Response:
    """One batch."""
    view = await context_of(request).jobs.get(request.match_info["batch_id"], scope_of(request))
    return answer(batch_object(_found(request, view)))


async def cancel(request: web.Request) -> web.Response:
    """Send nothing more of a batch; what is finished is kept."""
    try:
        view = await context_of(request).jobs.cancel(request.match_info["batch_id"], scope_of(request))
    except IllegalMoveError as error:
        raise ApiError(
            CONFLICT, f"Cannot cancel a batch that has ended: {error}", code="batch_ended"
        ) from error
    return answer(batch_object(_found(request, view)))


def batch_object(view: JobView) -> dict[str, object]:
    """OpenAI's Batch object."""
    details = view.details
    return {
        "id": view.id,
        "object": "batch",
        "endpoint": details.endpoint,
        "model": details.model,
        "errors": _errors(details.errors),
        "input_file_id": details.input_file_id,
        "completion_window": details.completion_window,
        "status": view.status,
        "output_file_id": details.output_file_id,
        "error_file_id": details.error_file_id,
        "created_at": int(view.created_at),
        "in_progress_at": _time(view, Stage.IN_PROGRESS),
        "expires_at": int(details.expires_at),
        "finalizing_at": _time(view, Stage.FINALIZING, Stage.EXPIRING),
        "completed_at": _time(view, Stage.COMPLETED),
        "failed_at": _time(view, Stage.FAILED),
        "expired_at": _time(view, Stage.EXPIRED),
        "cancelling_at": _time(view, Stage.CANCELLING),
        "cancelled_at": _time(view, Stage.CANCELLED),
        "request_counts": {
            "total": view.counts.total,
            "completed": view.counts.succeeded,
            "failed": view.counts.failed,
        },
        "usage": _usage(view),
        "metadata": details.metadata,
    }


def _time(view: JobView, *stages: Stage) -> int | None:
    """When it came to one of these stages; nothing of a life before a retry."""
    since = view.details.at(Stage.REOPENING) or 0.0
    if stages == (Stage.IN_PROGRESS,):
        since = 0.0
    times = [at for stage in stages if (at := view.details.at(stage)) is not None and at >= since]
    return int(max(times)) if times else None


def _errors(errors: tuple[LineError, ...]) -> dict[str, object] | None:
    if not errors:
        return None
    data = [
        {"code": error.code, "line": error.line, "message": error.message, "param": None} for error in errors
    ]
    return {"object": "list", "data": data}


def _usage(view: JobView) -> dict[str, object]:
    """Cached and reasoning tokens are 0 until the batch has ended, and where no server tells them.

    OpenAI's types know no absence there: `null` would fail a client that validates.
    """
    told = view.details.token_details
    return {
        "input_tokens": view.prompt_tokens,
        "input_tokens_details": {"cached_tokens": told.cached or 0},
        "output_tokens": view.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": told.reasoning or 0},
        "total_tokens": view.prompt_tokens + view.completion_tokens,
    }


def _check(wanted: NewBatch) -> int:
    """The completion window in seconds. Raises ApiError (400) for what cannot be a batch."""
    if wanted.endpoint not in ROUTES:
        raise _invalid("endpoint", f"endpoint must be one of {', '.join(sorted(ROUTES))}")
    seconds = window_s(wanted.completion_window)
    if seconds is None:
        raise _invalid("completion_window", "completion_window must be a time up to a year, like 24h or 7d")
    metadata = wanted.metadata or {}
    if len(metadata) > METADATA_KEYS_MAX:
        raise _invalid("metadata", f"metadata may have {METADATA_KEYS_MAX} keys")
    for key, value in metadata.items():
        if len(key) > KEY_CHARACTERS_MAX or len(value) > VALUE_CHARACTERS_MAX:
            raise _invalid(
                "metadata",
                f"metadata keys may have {KEY_CHARACTERS_MAX} characters, values {VALUE_CHARACTERS_MAX}",
            )
    return seconds


def _new_job(
    wanted: NewBatch, record: FileRecord, owner: Principal, seconds: int, context: Context
) -> NewJob:
    dispatch, expiry = context.config.dispatch, wanted.output_expires_after
    job = Job(
        JobId(""),
        max_attempts=wanted.max_attempts or dispatch.max_attempts,
        request_timeout_s=dispatch.request_timeout_s,
        model=wanted.model,
        provenance=context.config.results.provenance,
        priority=wanted.priority,
        weight=wanted.weight,
        limit=wanted.limit,
    )
    expires_s = None if expiry is None else expiry_s(expiry.anchor, expiry.seconds, "output_expires_after")
    return NewJob(
        owner=owner.name,
        input=record,
        endpoint=wanted.endpoint,
        completion_window=wanted.completion_window,
        window_s=seconds,
        job=job,
        metadata=wanted.metadata,
        output_expires_s=expires_s,
        rows_max=owner.limits.queued_rows,
    )


def _found(request: web.Request, view: JobView | None) -> JobView:
    if view is None:
        raise ApiError(
            NOT_FOUND, f"No batch found with id '{request.match_info['batch_id'][:64]}'.", param="id"
        )
    return view


def _invalid(param: str, message: str) -> ApiError:
    return ApiError(BAD_REQUEST, message, param=param, code="invalid_value")

"""Jobs with all that a batch of OpenAI's has no word for: `/jobs`."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import fields

import msgspec
from aiohttp import web

from dispatcher.api.auth import principal_of
from dispatcher.api.bodies import read_record
from dispatcher.api.context import context_of
from dispatcher.api.errors import ApiError
from dispatcher.api.openai_batches import Limit, Priority, Weight
from dispatcher.api.paging import answer, limit_of, page, scope_of
from dispatcher.api.sending import send
from dispatcher.jobs.jobs import Changes, Jobs
from dispatcher.jobs.life import IllegalMoveError
from dispatcher.jobs.view import JobView

NOT_FOUND, CONFLICT = 404, 409
LIST_DEFAULT, LIST_MAX = 100, 1000
Change = Callable[[Jobs, str, str | None], Awaitable[JobView | None]]


def routes() -> Iterable[web.RouteDef]:
    """The routes of this module."""
    return (
        web.get("/jobs", list_jobs),
        web.get("/jobs/{job_id}", get_job),
        web.patch("/jobs/{job_id}", change_job),
        web.delete("/jobs/{job_id}", delete_job),
        web.post("/jobs/{job_id}/pause", _changing(Jobs.pause)),
        web.post("/jobs/{job_id}/resume", _changing(Jobs.resume)),
        web.post("/jobs/{job_id}/cancel", _changing(Jobs.cancel)),
        web.post("/jobs/{job_id}/retry", retry),
        web.get("/jobs/{job_id}/results", results),
    )


class JobChanges(msgspec.Struct, forbid_unknown_fields=True):
    """What to change of a job: what is not there stays as it is. A `limit` of null takes the limit away."""

    priority: Priority | msgspec.UnsetType = msgspec.UNSET
    weight: Weight | msgspec.UnsetType = msgspec.UNSET
    limit: Limit | msgspec.UnsetType | None = msgspec.UNSET


async def list_jobs(request: web.Request) -> web.Response:
    """A page of jobs, the latest first."""
    limit = limit_of(request, default=LIST_DEFAULT, maximum=LIST_MAX)
    jobs = context_of(request).jobs
    found = jobs.list(scope_of(request), after=request.query.get("after"), limit=limit + 1)
    return page([job_object(view) for view in found[:limit]], has_more=len(found) > limit)


async def get_job(request: web.Request) -> web.Response:
    """One job."""
    view = await context_of(request).jobs.get(request.match_info["job_id"], scope_of(request))
    return answer(job_object(_found(request, view)))


async def change_job(request: web.Request) -> web.Response:
    """Change a job's priority, weight or limit."""
    wanted = await read_record(request, JobChanges)
    changes = Changes(
        priority=None if wanted.priority is msgspec.UNSET else wanted.priority,
        weight=None if wanted.weight is msgspec.UNSET else wanted.weight,
        limit=None if wanted.limit is msgspec.UNSET else wanted.limit,
        unlimited=wanted.limit is None,
    )
    return await _changed(request, lambda jobs, job_id, owner: jobs.change(job_id, changes, owner))


async def delete_job(request: web.Request) -> web.Response:
    """Forget a job that has ended. Its output and error file are files like others, and stay."""
    job_id = request.match_info["job_id"]
    try:
        deleted = await context_of(request).jobs.delete(job_id, scope_of(request))
    except IllegalMoveError as error:
        raise _conflict(error) from error
    if not deleted:
        raise _no_job(request)
    return answer({"id": job_id, "object": "job", "deleted": True})


async def retry(request: web.Request) -> web.Response:
    """Send the failed requests of a job that has ended again: it is open again, and counts as such."""
    context = context_of(request)
    view = _found(request, await context.jobs.get(request.match_info["job_id"], scope_of(request)))
    async with context.admission.one_more(principal_of(request), context.jobs, view.counts.failed):
        return await _changed(request, Jobs.retry_failed)


async def results(request: web.Request) -> web.StreamResponse:
    """What is finished so far, as JSON lines of the output's and the error file's form, in no order."""
    lines = await context_of(request).jobs.results(request.match_info["job_id"], scope_of(request))
    if lines is None:
        raise _no_job(request)
    response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
    await response.prepare(request)
    await send(request, response, lines)
    return response


def job_object(view: JobView) -> dict[str, object]:
    """A job as it is shown; times are seconds since the epoch."""
    shown = {field.name: getattr(view, field.name) for field in fields(view) if field.name != "details"}
    details = view.details
    files = {
        "input_file_id": details.input_file_id,
        "output_file_id": details.output_file_id,
        "error_file_id": details.error_file_id,
    }
    validation = [msgspec.to_builtins(error) for error in details.errors]
    return {"object": "job", **shown, **files, "stage": details.stage.value, "validation_errors": validation}


def _changing(change: Change) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(request: web.Request) -> web.Response:
        return await _changed(request, change)

    return handler


async def _changed(request: web.Request, change: Change) -> web.Response:
    jobs = context_of(request).jobs
    try:
        view = await change(jobs, request.match_info["job_id"], scope_of(request))
    except IllegalMoveError as error:
        raise _conflict(error) from error
    return answer(job_object(_found(request, view)))


def _found(request: web.Request, view: JobView | None) -> JobView:
    if view is None:
        raise _no_job(request)
    return view


def _conflict(error: IllegalMoveError) -> ApiError:
    return ApiError(CONFLICT, str(error), code="illegal_move")


def _no_job(request: web.Request) -> ApiError:
    return ApiError(NOT_FOUND, f"there is no job {request.match_info['job_id'][:64]}", code="no_such_job")

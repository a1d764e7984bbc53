"""A file's bytes from a store that is elsewhere, or some of them."""

from collections.abc import AsyncIterator, Mapping

from aiohttp import hdrs, web

from dispatcher.api.errors import ApiError
from dispatcher.api.sending import send
from dispatcher.errors import StorageError
from dispatcher.jobs.files import Files
from dispatcher.queue.keeping import FileRecord

OK, PARTIAL, NOT_SATISFIABLE = 200, 206, 416


async def stream(
    request: web.Request, files: Files, record: FileRecord, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Answer with the bytes that Range asks for; all of them where there is none, or none that can be read.

    Raises ApiError (416) where the file has none of those.
    """
    found = _asked_for(request, record)
    start, end = found or (0, record.bytes)
    response = web.StreamResponse(status=PARTIAL if found else OK, headers=headers)
    response.headers[hdrs.ACCEPT_RANGES] = "bytes"
    response.content_length = end - start
    if found:
        response.headers[hdrs.CONTENT_RANGE] = f"bytes {start}-{end - 1}/{record.bytes}"
    await response.prepare(request)
    if request.method != hdrs.METH_HEAD:
        await send(request, response, _chunks(files, record, start, end))
    return response


async def _chunks(files: Files, record: FileRecord, start: int, end: int) -> AsyncIterator[bytes]:
    async for chunk in files.chunks(record.id, start, end):
        yield chunk
        start += len(chunk)
    if start < end:
        raise StorageError(f"{record.id}: the file was removed while it was read")


def _asked_for(request: web.Request, record: FileRecord) -> tuple[int, int] | None:
    """First byte, and the one after the last; None: no range is asked for that this route knows.

    With If-Range there is none: it would have to be an ETag of ours, and we give none.
    """
    try:
        asked = request.http_range
    except ValueError:  # several ranges, or another unit: RFC 9110 lets them be ignored
        return None
    if hdrs.IF_RANGE in request.headers or (asked.start is None and asked.stop is None):
        return None
    start, end, _ = asked.indices(record.bytes)
    if start >= end:
        raise ApiError(
            NOT_SATISFIABLE,
            f"the file has {record.bytes} bytes",
            param="Range",
            code="range_not_satisfiable",
            headers={hdrs.CONTENT_RANGE: f"bytes */{record.bytes}"},
        )
    return start, end

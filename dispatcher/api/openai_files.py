"""OpenAI's Files: `/v1/files`.

Source of fields, limits and defaults: https://platform.openai.com/docs/api-reference/files. Unlike there, a
file without `expires_after` is kept until it is deleted.
"""

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from dispatcher.api.auth import principal_of
from dispatcher.api.context import context_of
from dispatcher.api.errors import ApiError
from dispatcher.api.file_content import stream
from dispatcher.api.paging import BAD_REQUEST, answer, limit_of, page, scope_of
from dispatcher.jobs.files import Upload
from dispatcher.queue.keeping import FileRecord, FilesWanted

_T = TypeVar("_T")
NOT_FOUND, TOO_LARGE, TIMED_OUT = 404, 413, 408
CHUNK_BYTES = 1 << 20
CHUNK_S = 60.0
"""How long the next `CHUNK_BYTES` of an upload may take to come, or its end: 17 kB/s is the least."""
FIELD_BYTES_MAX = 4096
PARTS_MAX = 32
FILENAME_CHARACTERS_MAX = 255
LIST_MAX = 10_000
EXPIRES_S = range(3600, 2_592_001)
"""1 hour to 30 days."""


def routes() -> Iterable[web.RouteDef]:
    """The routes of this module."""
    return (
        web.post("/v1/files", upload),
        web.get("/v1/files", list_files),
        web.get("/v1/files/{file_id}", get_file),
        web.get("/v1/files/{file_id}/content", content),
        web.delete("/v1/files/{file_id}", delete_file),
    )


async def upload(request: web.Request) -> web.Response:
    """Take a file in, as multipart/form-data: `file`, `purpose`, `expires_after[...]`, in any order."""
    if request.content_type != "multipart/form-data":
        raise ApiError(BAD_REQUEST, "send the file as multipart/form-data", code="invalid_content_type")
    context = context_of(request)
    bytes_max = context.config.api.upload_bytes_max
    # No more than the form as a whole, where it says so: how large parts must be follows from it.
    announced = min(bytes_max, request.content_length or bytes_max)
    async with context.files.receive(announced) as receiving:
        form = _Form()
        try:
            await _read(await request.multipart(), receiving, form, bytes_max)
        except (ValueError, ConnectionError, web.RequestPayloadError) as error:  # aiohttp's, in reading
            raise ApiError(BAD_REQUEST, f"the form cannot be read: {error}", code="invalid_form") from error
        form.check()
        record = await receiving.keep(
            principal_of(request).name, form.filename or "upload", "batch", form.expires_s
        )
    return answer(file_object(record))


async def list_files(request: web.Request) -> web.Response:
    """A page of files, the latest first unless `order=asc`."""
    order = request.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ApiError(BAD_REQUEST, "order must be asc or desc", param="order", code="invalid_value")
    limit = limit_of(request, default=LIST_MAX, maximum=LIST_MAX)
    wanted = FilesWanted(
        scope_of(request),
        limit + 1,
        purpose=request.query.get("purpose"),
        after=request.query.get("after"),
        ascending=order == "asc",
    )
    found = await context_of(request).files.list(wanted)
    return page([file_object(record) for record in found[:limit]], has_more=len(found) > limit)


async def get_file(request: web.Request) -> web.Response:
    """One file."""
    return answer(file_object(await _record(request)))


async def content(request: web.Request) -> web.StreamResponse:
    """A file's bytes, or with Range some of them."""
    record = await _record(request)
    files = context_of(request).files
    path = files.path(record)
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f'attachment; filename="{record.id}.jsonl"',
        "X-Content-Type-Options": "nosniff",
    }
    if path is not None:
        return web.FileResponse(path, headers=headers)
    return await stream(request, files, record, headers)


async def delete_file(request: web.Request) -> web.Response:
    """Delete a file. A batch that it is the input of is not harmed."""
    record = await _record(request)
    await context_of(request).files.remove(record.id)
    return answer({"id": record.id, "object": "file", "deleted": True})


def file_object(record: FileRecord) -> dict[str, object]:
    """OpenAI's File object."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.bytes,
        "created_at": int(record.created_at),
        "expires_at": None if record.expires_at is None else int(record.expires_at),
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }


def expiry_s(anchor: object, seconds: object, param: str) -> int:
    """The seconds of an expiry policy. Raises ApiError (400)."""
    if anchor != "created_at":
        raise ApiError(
            BAD_REQUEST, f"{param}.anchor must be created_at", param=f"{param}.anchor", code="invalid_value"
        )
    text = str(seconds)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) in EXPIRES_S):  # noqa: PLR2004  # digits
        raise ApiError(
            BAD_REQUEST,
            f"{param}.seconds must be a number from {EXPIRES_S[0]} to {EXPIRES_S[-1]}",
            param=f"{param}.seconds",
            code="invalid_value",
        )
    return int(text)


@dataclass(slots=True)
class _Form:
    """What an upload's form holds beside the bytes."""

    filename: str | None = None
    has_file: bool = False
    fields: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raises ApiError (400)."""
        if not self.has_file:
            raise ApiError(
                BAD_REQUEST, "the form has no file", param="file", code="missing_required_parameter"
            )
        purpose = self.fields.get("purpose")
        if purpose is None:
            raise ApiError(
                BAD_REQUEST, "purpose is missing", param="purpose", code="missing_required_parameter"
            )
        if purpose != "batch":
            raise ApiError(BAD_REQUEST, "purpose must be batch", param="purpose", code="invalid_value")
        _ = self.expires_s

    @property
    def expires_s(self) -> int | None:
        """How long the file is to be kept; None: until it is deleted."""
        anchor, seconds = (self.fields.get(f"expires_after[{name}]") for name in ("anchor", "seconds"))
        return None if anchor is None and seconds is None else expiry_s(anchor, seconds, "expires_after")


async def _read(reader: MultipartReader, receiving: Upload, form: _Form, bytes_max: int) -> None:
    for _ in range(PARTS_MAX):
        part = await _in_time(_next_part(reader))
        if part is None:
            return
        if not isinstance(part, BodyPartReader):
            raise ApiError(BAD_REQUEST, "a form in a form is of no use here", code="invalid_form")
        if part.name == "file" and not form.has_file:
            form.has_file, form.filename = True, _readable(part.filename or "")[:FILENAME_CHARACTERS_MAX]
            await _receive(part, receiving, bytes_max)
        else:
            form.fields[part.name or ""] = await _field(part)
    raise ApiError(BAD_REQUEST, f"the form has more than {PARTS_MAX} parts", code="invalid_form")


async def _next_part(reader: MultipartReader) -> MultipartReader | BodyPartReader | None:
    """None after the last. Raises ValueError for a form that is none, as aiohttp does of most of these."""
    try:
        return await reader.next()
    except HttpProcessingError as error:  # a part's headers; its message would repeat them
        raise ValueError("the headers of a part are not valid") from error
    except RuntimeError as error:  # its `_charset_`
        raise ValueError(str(error)) from error


def _readable(filename: str) -> str:
    """Without the surrogates that stand for bytes that are not UTF-8: no JSON and no database takes them."""
    return filename.encode(errors="surrogateescape").decode(errors="replace").replace("\0", "\ufffd")


async def _receive(part: BodyPartReader, receiving: Upload, bytes_max: int) -> None:
    while chunk := await _in_time(_piece(part)):
        if receiving.bytes + len(chunk) > bytes_max:
            raise ApiError(
                TOO_LARGE,
                f"the file has more than {bytes_max} bytes (api.upload_bytes_max)",
                param="file",
                code="file_too_large",
                headers={"Connection": "close"},
            )
        await receiving.write(chunk)


async def _piece(part: BodyPartReader) -> bytes:
    """The next `CHUNK_BYTES` and a bit, or what is left: aiohttp gives what has come, were it a byte."""
    piece = bytearray()
    while len(piece) < CHUNK_BYTES and (chunk := await part.read_chunk(CHUNK_BYTES)):
        piece += chunk
    return bytes(piece)


async def _field(part: BodyPartReader) -> str:
    value = bytearray()
    while chunk := await _in_time(part.read_chunk(FIELD_BYTES_MAX)):
        value += chunk
        if len(value) > FIELD_BYTES_MAX:
            raise ApiError(BAD_REQUEST, "a field of the form is too long", code="invalid_form")
    return value.decode(errors="replace")


async def _in_time(coming: Awaitable[_T]) -> _T:
    try:
        async with asyncio.timeout(CHUNK_S):
            return await coming
    except TimeoutError:
        headers = {"Connection": "close"}
        raise ApiError(
            TIMED_OUT,
            f"the next {CHUNK_BYTES} bytes did not come within {CHUNK_S:g} s",
            code="request_timeout",
            headers=headers,
        ) from None


async def _record(request: web.Request) -> FileRecord:
    file_id = request.match_info["file_id"]
    record = await context_of(request).files.get(file_id, scope_of(request))
    if record is None:
        raise ApiError(NOT_FOUND, f"No such File object: {file_id[:64]}", param="id")
    return record

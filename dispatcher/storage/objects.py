"""An object store (S3, GCS, Azure): `ports.Store` over obstore."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import obstore

from dispatcher.errors import MissingError, StorageError, TakenError
from dispatcher.ports import Stored
from dispatcher.storage.opening import refusals
from dispatcher.storage.patience import Patience

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutMode, PutResult, UpdateVersion
    from obstore.store import ObjectStore as Client

PART_BYTES_MIN: Final = 8 << 20
"""Of a multipart upload. S3 wants at least 5 MiB, of all but the last."""
PARTS_MAX: Final = 9_000
"""S3 takes 10,000 (https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html)."""
PARTS_AT_ONCE: Final = 2
"""Parts of one stream that are in memory, and on their way, at a time; a third is being filled."""
LISTED_AT_ONCE: Final = 1000
DELETED_AT_ONCE: Final = 1000


class ObjectStorage:
    """Keys below a URL. Opens nothing by itself: requests make their own connections.

    Args:
        name: What it is called in errors: its URL.
        single: Makes each request once: what `patience` has sent again.
        streams: Sends the parts of a stream again by itself, as nobody else can.
        patience: Sends single requests again.
    """

    def __init__(self, name: str, single: "Client", streams: "Client", patience: Patience) -> None:
        self._name = name
        self._single = single
        self._streams = streams
        self._patience = patience

    @property
    def obstacle(self) -> str | None:
        """See Store."""
        return self._patience.obstacle

    def path(self, key: str) -> Path | None:  # noqa: ARG002  # the port's
        """See Store."""
        return None

    async def check(self) -> None:
        """Find out before the work whether the store can be written, and keeps two writers apart.

        Raises StorageError.
        """
        key = f"files/writable-{secrets.token_hex(8)}"
        await self.put(key, b"1")
        try:
            await self.put(key, b"2")
        except TakenError:
            return
        finally:
            await self.delete([key])
        raise StorageError(
            f"{self._name}: it overwrites what it was asked not to (If-None-Match has no effect), so that two"
            " nodes could write one journal; use a store that has conditional writes"
        )

    @asynccontextmanager
    async def receive(self, key: str, bytes_max: int | None = None) -> AsyncIterator["_Sending"]:
        """See Store. A multipart upload: it is aborted where it is not kept.

        The upload itself is never cancelled, for that would leave its parts in the store: it ends by itself
        when its bytes break off.
        """
        pieces = _Pieces()
        sending = asyncio.create_task(self._send(key, pieces, bytes_max), name="upload")
        incoming = _Sending(pieces, sending)
        try:
            yield incoming
        finally:
            pieces.break_off()
            with suppress(StorageError, _BrokenOffError):
                await _ended(sending)

    async def put(self, key: str, content: bytes, replaces: str | None = None) -> str:
        """See Store."""
        mode: PutMode = "create" if replaces is None else _update(replaces)

        async def request() -> str:
            with refusals(self._where(key), "cannot be written"):
                # One request, so that its condition counts: a multipart upload has none.
                put = obstore.put_async(self._single, key, content, mode=mode, use_multipart=False)
                return _version(await put)

        try:
            return await self._patience.keep_trying(request)
        except TakenError:
            version = await self._written_already(key, content)
            if version is None:
                raise
            return version

    async def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """See Store."""
        if length == 0:
            return b""
        options: GetOptions = {}
        if length is not None:
            options["range"] = (start, start + length)
        elif start:
            options["range"] = {"offset": start}

        async def request() -> bytes:
            with refusals(self._where(key), "cannot be read"):
                found = await obstore.get_async(self._single, key, options=options)
                return bytes(await found.bytes_async())

        return await self._patience.keep_trying(request)

    async def find(self, key: str) -> Stored | None:
        """See Store."""

        async def request() -> Stored:
            with refusals(self._where(key), "cannot be looked up"):
                return _stored(await obstore.head_async(self._single, key))

        try:
            return await self._patience.keep_trying(request)
        except MissingError:
            return None

    async def delete(self, keys: Sequence[str]) -> None:
        """See Store."""
        for start in range(0, len(keys), DELETED_AT_ONCE):
            await self._delete(keys[start : start + DELETED_AT_ONCE])

    async def list(self, folder: str) -> AsyncIterator[Stored]:
        """See Store."""
        listing = obstore.list(self._streams, folder, chunk_size=LISTED_AT_ONCE).__aiter__()
        while True:
            with refusals(self._where(folder), "cannot be listed"):
                try:
                    page = await listing.__anext__()
                except StopAsyncIteration:
                    return
            for meta in page:
                yield _stored(meta)

    async def _send(self, key: str, pieces: "_Pieces", bytes_max: int | None) -> None:
        with refusals(self._where(key), "cannot be written"):
            await obstore.put_async(
                self._streams,
                key,
                pieces,
                use_multipart=True,
                chunk_size=part_bytes(bytes_max),
                max_concurrency=PARTS_AT_ONCE,
            )

    async def _written_already(self, key: str, content: bytes) -> str | None:
        """The version, where it was ourselves who wrote there: the answer to an earlier try was lost."""

        async def request() -> str | None:
            with refusals(self._where(key), "cannot be read"):
                found = await obstore.get_async(self._single, key)
                same = bytes(await found.bytes_async()) == content
                return _version(found.meta) if same else None

        try:
            return await self._patience.keep_trying(request)
        except MissingError:
            return None

    async def _delete(self, keys: Sequence[str]) -> None:
        async def request() -> None:
            with refusals(self._where(keys[0]), "cannot be removed"):
                await obstore.delete_async(self._single, keys)

        try:
            await self._patience.keep_trying(request)
        except MissingError:  # where there is no bulk request, the first missing one ends it
            if len(keys) > 1:
                for key in keys:
                    await self._delete([key])

    def _where(self, key: str) -> str:
        return f"{self._name}/{key}"


def part_bytes(bytes_max: int | None) -> int:
    """How large the parts of a stream must be for so many bytes in all."""
    return max(PART_BYTES_MIN, -(-(bytes_max or 0) // PARTS_MAX))


class _BrokenOffError(Exception):
    """A stream is not to be kept."""


class _Pieces:
    """What is written, for whoever sends it: an iterator that has one piece in hand at most."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._broken = False

    async def give(self, piece: bytes | None) -> None:
        """Wait for room, and hand over; None ends the stream."""
        await self._pieces.put(piece)

    def break_off(self) -> None:
        """What is handed over is not to be kept, unless its end was."""
        self._broken = True
        if self._pieces.empty():
            self._pieces.put_nowait(b"")

    def __aiter__(self) -> "_Pieces":
        return self

    async def __anext__(self) -> bytes:
        piece = await self._pieces.get()
        if piece is None:
            raise StopAsyncIteration
        if self._broken:
            raise _BrokenOffError
        return piece


class _Sending:
    """`ports.Incoming`, whose other end is an upload."""

    def __init__(self, pieces: _Pieces, sending: "asyncio.Task[None]") -> None:
        self._pieces = pieces
        self._sending = sending

    async def write(self, piece: bytes) -> None:
        """See Incoming."""
        if piece:
            await self._give(piece)

    async def keep(self) -> None:
        """See Incoming."""
        await self._give(None)
        await _ended(self._sending)

    async def _give(self, piece: bytes | None) -> None:
        giving = asyncio.ensure_future(self._pieces.give(piece))
        try:
            await asyncio.wait({giving, self._sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            giving.cancel()
        if not giving.done() and self._sending.done():
            self._sending.result()  # it raises: only what has failed ends before its end was given


async def _ended(sending: "asyncio.Task[None]") -> None:
    """Wait for the upload's own end, and have its error, however often the caller is cancelled."""
    cancelled: asyncio.CancelledError | None = None
    while not sending.done():
        try:
            await asyncio.wait({sending})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    sending.result()


def _stored(meta: "ObjectMeta") -> Stored:
    return Stored(meta["path"], meta["size"], meta["last_modified"].timestamp(), _version(meta))


def _version(written: "ObjectMeta | PutResult") -> str:
    """Both of what stores tell versions by: S3 and Azure take the ETag, GCS its generation."""
    return f"{written['e_tag'] or ''}\n{written['version'] or ''}"


def _update(version: str) -> "UpdateVersion":
    e_tag, _, generation = version.partition("\n")
    return {"e_tag": e_tag, "version": generation} if generation else {"e_tag": e_tag}

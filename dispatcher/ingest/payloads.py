"""Reading a shard's requests from the input file."""

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dispatcher.errors import StorageError
from dispatcher.jsonl import is_blank, raw_members
from dispatcher.model import Job, Lease, Request, Shard
from dispatcher.request_line import Head, parse_request


class FilePayloads:
    """The requests of one input file: the port `Payloads`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self, lease: Lease) -> Sequence[Request]:
        """The shard's requests in index order, without the rejected lines; `job.model` is applied.

        Raises StorageError where the file cannot be read, or is not the one that was scanned.
        """
        return await asyncio.to_thread(self.read_now, lease)

    def read_now(self, lease: Lease) -> list[Request]:
        """As `read`, for a thread: it blocks."""
        if lease.shard.requests == 0:
            return []  # its one line may be too long to be read
        return requests_in(self._bytes(lease.shard), lease, str(self._path))

    def _bytes(self, shard: Shard) -> bytes:
        content = bytearray()
        try:
            with self._path.open("rb") as file:
                while len(content) < shard.length:
                    at = shard.offset + len(content)
                    piece = os.pread(file.fileno(), shard.length - len(content), at)
                    if not piece:
                        raise changed(str(self._path), at, "the file ends here")
                    content += piece
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be read: {error.strerror}") from error
        return bytes(content)


def requests_in(content: bytes, lease: Lease, name: str) -> list[Request]:
    """The requests in a shard's bytes, in index order, without the rejected lines; `job.model` is applied.

    Raises StorageError, which says `name`, where these are not the bytes that were scanned.
    """
    lines = [line for line in content.split(b"\n") if not is_blank(line)]
    if len(lines) != lease.shard.count:
        found = f"{len(lines)} lines stand where {lease.shard.count} were"
        raise changed(name, lease.shard.offset, found)
    return list(_requests(lines, lease, name))


def changed(name: str, offset: int, found: str) -> StorageError:
    """The error of an input that is not the one that was checked."""
    return StorageError(
        f"{name}, byte {offset}: the input has changed since it was checked ({found}); "
        "put the original back and resume"
    )


def _requests(lines: list[bytes], lease: Lease, name: str) -> Iterator[Request]:
    shard = lease.shard
    rejected = frozenset(shard.rejected)
    for index, line in enumerate(lines, shard.first_index):
        if index in rejected:
            continue
        head = parse_request(line)
        if not isinstance(head, Head):
            found = f"request {index - shard.first_index} from there: {head.message}"
            raise changed(name, shard.offset, found)
        yield request_of(index, head, lease.job)


def request_of(index: int, head: Head, job: Job) -> Request:
    """The request to send: the line's own body, unless the job says what `model` is to be."""
    model = job.model_override or head.model or job.model
    body = head.body if model == head.model or model is None else with_model(head.body, model)
    return Request(index, head.custom_id, head.url, model, body)


def with_model(body: bytes, model: str) -> bytes:
    """Put `model` into a body that `parse_request` accepted. Other members keep their bytes.

    A body without the member gets it in front. One that has it is put together anew, without the white space
    between members and without repeated keys.
    """
    members = _members(body)
    value = msgspec.json.encode(model)
    if "model" not in members:
        rest = body[body.index(b"{") + 1 :]
        return b'{"model":' + value + (b"," if members else b"") + rest
    members["model"] = value
    return b"{" + b",".join(json.dumps(key).encode() + b":" + raw for key, raw in members.items()) + b"}"


def _members(body: bytes) -> dict[str, bytes]:
    try:
        return {key: bytes(raw) for key, raw in _RAW_MEMBERS.decode(body).items()}
    except msgspec.MsgspecError:  # lone surrogate escapes
        return {key: raw.encode() for key, raw in raw_members(body.decode()).items()}


_RAW_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])

"""Messages over a pair of sockets, each with its length before it."""

import asyncio
import socket
from types import UnionType
from typing import Generic, TypeVar

import msgspec

MESSAGE_BYTES_MAX = 256 * 2**20
"""Far above what ten thousand servers have to tell: more can only be a stream that is out of step."""
LENGTH_BYTES = 4

Told = TypeVar("Told")
Heard = TypeVar("Heard")


class Channel(Generic[Told, Heard]):
    """One end of the pair. `hears` is the union of the messages that come from the other end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hears: UnionType) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = msgspec.msgpack.Decoder(hears)

    @classmethod
    async def over(cls, end: socket.socket, hears: UnionType) -> "Channel[Told, Heard]":
        """Take an end of a `socketpair` for this channel's own."""
        reader, writer = await asyncio.open_connection(sock=end)
        return cls(reader, writer, hears)

    def tell(self, message: Told) -> None:
        """Send a message. Nothing is said where the other end is gone: `hear` says it."""
        if not self._writer.is_closing():
            encoded = msgspec.msgpack.encode(message)
            self._writer.write(len(encoded).to_bytes(LENGTH_BYTES) + encoded)

    async def flushed(self) -> None:
        """Wait until the other end has taken most of what was told, or is gone."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    async def hear(self) -> Heard | None:
        """The next message; None where the other end is gone."""
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES))
            assert length <= MESSAGE_BYTES_MAX, f"a message of {length} bytes"
            message: Heard = self._decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return message

    def close(self) -> None:
        """Close this end; what was told is still sent."""
        self._writer.close()

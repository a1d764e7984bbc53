"""The fake's listener."""

import asyncio
import socket

import pytest

from dispatcher.testing.connections import Listener


class Greeter(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"hello")


@pytest.mark.parametrize("steps", range(5))
async def test_a_connection_that_comes_in_the_moment_of_the_end_is_closed(steps):
    """Whatever the loop has done of its acceptance. One that stays open is a warning, and that an error."""
    listener = Listener(Greeter, "127.0.0.1", 0)
    listener.open()
    with socket.create_connection(("127.0.0.1", listener.port), 5) as client:
        for _ in range(steps):
            await asyncio.sleep(0)
        await listener.release()
        if steps < 2:
            assert await asyncio.to_thread(_ends, client)
    await asyncio.sleep(0.05)  # those that were greeted see their client leave


def _ends(client):
    try:
        return client.recv(16) == b""
    except ConnectionResetError:
        return True


async def test_it_listens_on_the_same_port_again():
    listener = Listener(Greeter, "127.0.0.1", 0)
    for _ in range(2):
        listener.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", listener.port)
    await listener.release()

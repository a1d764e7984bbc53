"""A wire to PostgreSQL that breaks at the worst moment: just before a commit, or just after it."""

import asyncio
from contextlib import asynccontextmanager
from enum import Enum, auto


class Cut(Enum):
    """What happens to the next commit."""

    NONE = auto()
    REQUEST = auto()  # it never arrives
    ANSWER = auto()  # it is done, and nobody is told


class Wire:
    """Forwards bytes. `cut` is used up by one commit; while `down`, nobody gets through."""

    def __init__(self, port):
        self.port = None
        self.cut = Cut.NONE
        self.down = False
        self._to = port

    async def serve(self, reader, writer):
        if self.down:
            writer.close()
            return
        try:
            answers, requests = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        back = asyncio.create_task(self._forward(answers, writer))
        try:
            await self._requests(reader, requests, answers, back)
        except OSError:
            pass
        finally:
            back.cancel()
            writer.close()
            requests.close()

    async def _requests(self, reader, requests, answers, back):
        while data := await reader.read(65536):
            cut = self.cut if b"COMMIT;" in data else Cut.NONE
            if cut is not Cut.NONE:
                self.cut = Cut.NONE
            if cut is Cut.REQUEST:
                return
            if cut is Cut.ANSWER:
                back.cancel()
                await asyncio.wait([back])
                requests.write(data)
                await answers.read(65536)
                return
            requests.write(data)
            await requests.drain()

    async def _forward(self, reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def open_wire(port):
    wire = Wire(port)
    async with await asyncio.start_server(wire.serve, "127.0.0.1", 0) as server:
        wire.port = server.sockets[0].getsockname()[1]
        yield wire

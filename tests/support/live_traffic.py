"""Clients that keep asking a service which is killed again and again, and know the right answers."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
from commands import until
from jobs import CHAT, MODEL

QUESTIONS = 32
ANSWER_S_MAX = 30
"""One request, from its start to its whole answer."""
PAUSE_S = 0.03
"""Between two requests of a client."""


class LiveTraffic:
    """Live requests to `serving`, which has a `url`, is `up` or not, and counts its `kills`.

    A request may break while there is no service, or when it dies under it. Anything else that is not the
    right answer ends the test. Half of them are streams.
    """

    def __init__(self, serving):
        self.answered = 0
        self.broken = 0
        self._serving = serving
        self._right = {}
        self._stopping = False

    @asynccontextmanager
    async def asking(self, oracle, clients=4):
        """Ask for as long as the context is open. The right answers are those of `oracle`, a server apart."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_S_MAX)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            for body in _bodies():
                self._right[body] = await _answer(http, oracle.url, body)
            async with asyncio.TaskGroup() as tasks:
                for client in range(clients):
                    tasks.create_task(self._keep_asking(http, client))
                yield
                self._stopping = True

    async def _keep_asking(self, http, client):
        await until(lambda: self._serving.url)
        bodies = list(self._right)
        turn = client
        while not self._stopping:
            await self._ask(http, bodies[turn % len(bodies)])
            turn += 1
            await asyncio.sleep(PAUSE_S)

    async def _ask(self, http, body):
        was_up, kills = self._serving.up, self._serving.kills
        try:
            text = await _answer(http, self._serving.url, body)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            if was_up and kills == self._serving.kills:
                raise
            self.broken += 1
        else:
            assert text == self._right[body]
            self.answered += 1


def _bodies():
    for number in range(QUESTIONS):
        messages = [{"role": "user", "content": f"live question {number}"}]
        yield json.dumps({"model": MODEL, "messages": messages, "stream": bool(number % 2)})


async def _answer(http, url, body):
    async with http.post(url + CHAT, data=body, headers={"Content-Type": "application/json"}) as response:
        content = await response.text()
    assert response.status == 200, content
    return _streamed(content) if response.content_type == "text/event-stream" else _whole(content)


def _whole(content):
    (choice,) = json.loads(content)["choices"]
    assert choice["finish_reason"] == "stop"
    return choice["message"]["content"]


def _streamed(content):
    events = content.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""], "a stream that broke off was passed off as a whole one"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])

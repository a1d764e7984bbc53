"""One request until its end: where it goes, how often, and what it says of itself."""

import asyncio
from collections import Counter

import pytest

from dispatcher import ErrorCode, RequestFailedError
from dispatcher.model import Answer, Break, BreakKind, Verdict
from dispatcher.vllm.client.sender import Sender, UnansweredError
from dispatcher.vllm.client.servers import LeastOutstanding, parse_servers

URLS = ["http://a:1", "http://b:1", "http://c:1"]
GOOD = Answer(200, b'{"choices":[{"text":"x","finish_reason":"stop"}],"usage":{"prompt_tokens":4}}', "", "r")
REFUSED = Break(BreakKind.REFUSED)
BUSY = Answer(429, b"{}", retry_after_s=2.0)
BAD = Answer(400, b'{"error":{"message":"no","type":"BadRequestError","param":"temperature"}}', "", "r")
OTHER_MODEL = Answer(404, b'{"error":{"message":"no","type":"NotFoundError","param":"model"}}')


class Stage:
    """A sender over servers whose endings are scripted: by URL a list, the last of which stays."""

    def __init__(self, script, *, max_attempts=3, open_max=100):
        self.script = {url: list(endings) for url, endings in script.items()}
        self.servers = LeastOutstanding(
            parse_servers(list(script), None, {}), lambda: asyncio.get_running_loop().time()
        )
        self.sends, self.ids, self.lost = [], [], []
        self.roots_listed = None
        self.sender = Sender(
            self, self.servers, self, max_attempts=max_attempts, timeout_s=9.0, open_max=open_max
        )

    def forget(self, server):
        self.lost.append(server.id)

    async def roots(self, server):
        assert server.id == self.sends[-1]
        return self.roots_listed

    async def send(self, server, request, request_id, timeout_s):
        assert timeout_s == 9.0
        assert request.body == f"for {server.id}".encode()
        self.sends.append(server.id)
        self.ids.append(request_id)
        endings = self.script[server.id]
        ending = endings.pop(0) if len(endings) > 1 else endings[0]
        if ending is None:
            await asyncio.sleep(3600)
        return ending

    async def run(self, model=None):
        async def body(server):
            return f"for {server.id}".encode()

        return await self.sender.send("/v1/completions", model, body)

    async def failure(self):
        with pytest.raises(RequestFailedError) as caught:
            await self.run()
        return caught.value

    def outstanding(self):
        return sum(standing.outstanding for standing in self.servers._standings.values())


async def test_an_answer_says_what_it_took():
    stage = Stage({URLS[0]: [GOOD]})
    reply = await stage.run()
    assert (reply.server.id, reply.attempts, reply.tokens.prompt, reply.request_id) == (URLS[0], 1, 4, "r")
    assert stage.outstanding() == 0


async def test_a_request_goes_on_to_the_next_server_where_one_refuses():
    stage = Stage({URLS[0]: [REFUSED], URLS[1]: [REFUSED], URLS[2]: [GOOD]})
    reply = await stage.run()
    assert stage.sends == URLS
    assert (reply.server.id, reply.attempts) == (URLS[2], 3)
    assert stage.lost == URLS[:2]
    assert asyncio.get_running_loop().time() == 0.0
    await stage.run()
    assert stage.sends[3:] == [URLS[2]]  # those that refused are passed over


async def test_every_send_has_an_id_of_its_own():
    """A server refuses an id that is still open there, as that of a send whose connection broke can be."""
    stage = Stage({URLS[0]: [Break(BreakKind.RESET)], URLS[1]: [GOOD]})
    await stage.run()
    assert stage.ids[1] == f"{stage.ids[0]}-2"


async def test_where_nobody_is_there_it_fails_within_seconds():
    stage = Stage({url: [REFUSED] for url in URLS})
    error = await stage.failure()
    assert (error.code, error.attempts, error.status) == (ErrorCode.SERVER_ERROR, 5, None)
    assert Counter(stage.sends[:3]) == Counter(URLS)
    assert asyncio.get_running_loop().time() <= 0.75
    assert stage.outstanding() == 0


async def test_a_bad_request_is_sent_once():
    stage = Stage({url: [BAD] for url in URLS})
    error = await stage.failure()
    assert (error.code, error.status, error.request_id) == (ErrorCode.INVALID_REQUEST, 400, "r")
    assert error.message == "no"
    assert len(stage.sends) == 1


async def test_half_an_answer_is_asked_for_again_elsewhere():
    stage = Stage({URLS[0]: [Answer(200, b'{"choices":')], URLS[1]: [GOOD]})
    assert (await stage.run()).server.id == URLS[1]


async def test_half_an_answer_each_time_is_charged_up_to_the_attempts():
    stage = Stage({URLS[0]: [Answer(200, b"{}")]}, max_attempts=4)
    error = await stage.failure()
    assert (error.code, error.attempts) == (ErrorCode.INVALID_RESPONSE, 4)


async def test_a_busy_server_is_waited_for():
    stage = Stage({URLS[0]: [BUSY, BUSY, GOOD]})
    assert (await stage.run()).attempts == 3
    assert 4.0 <= asyncio.get_running_loop().time() <= 5.0
    assert not stage.lost


async def test_a_busy_server_is_left_for_one_that_is_not():
    stage = Stage({URLS[0]: [BUSY], URLS[1]: [GOOD]})
    assert (await stage.run()).server.id == URLS[1]
    assert asyncio.get_running_loop().time() <= 0.25


async def test_a_server_that_is_busy_for_ever_is_an_error_in_the_end():
    error = await Stage({URLS[0]: [BUSY]}).failure()
    assert (error.code, error.status, error.attempts) == (ErrorCode.SERVER_ERROR, 429, 31)


async def test_a_model_that_no_server_has_is_asked_for_once_at_each():
    stage = Stage({url: [OTHER_MODEL] for url in URLS})
    error = await stage.failure()
    assert (error.code, Counter(stage.sends)) == (ErrorCode.MODEL_NOT_FOUND, Counter(URLS))


def answer_of(model):
    return Answer(200, b'{"model":"%b","choices":[{"text":"x","finish_reason":"stop"}]}' % model.encode())


async def test_an_answer_under_another_name_counts_if_the_server_lists_both_as_one():
    stage = Stage({URLS[0]: [answer_of("first")]})
    stage.roots_listed = {"first": "org/m", "alias": "org/m", "other": "org/other"}
    assert (await stage.run("alias")).attempts == 1
    stage.roots_listed = None
    assert (await stage.run("alias")).attempts == 1


async def test_an_answer_of_another_model_is_asked_for_elsewhere():
    stage = Stage({URLS[0]: [answer_of("first")], URLS[1]: [answer_of("other")]})
    stage.roots_listed = {"first": "org/m", "other": "org/other"}
    assert (await stage.run("other")).server.id == URLS[1]


async def test_a_stale_connection_costs_nothing_and_the_servers_facts():
    stage = Stage({URLS[0]: [Break(BreakKind.STALE), GOOD]}, max_attempts=1)
    assert (await stage.run()).attempts == 2
    assert stage.lost == [URLS[0]]


async def test_a_cancelled_request_gives_its_server_back():
    stage = Stage({URLS[0]: [None]})
    task = asyncio.create_task(stage.run())
    await asyncio.sleep(1)
    assert stage.outstanding() == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stage.outstanding() == 0


async def test_no_more_sends_are_open_than_there_are_descriptors_and_pauses_hold_none():
    stage = Stage({URLS[0]: [None]}, open_max=3)
    tasks = [asyncio.create_task(stage.run()) for _ in range(8)]
    await asyncio.sleep(1)
    assert stage.outstanding() == len(stage.sends) == 3
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    stage = Stage({URLS[0]: [BUSY, GOOD]}, open_max=1)
    paused = asyncio.create_task(stage.run())
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    await stage.run()
    assert asyncio.get_running_loop().time() == began
    await paused


async def test_an_error_of_the_bodys_maker_ends_it_and_gives_the_server_back():
    stage = Stage({URLS[0]: [GOOD]})

    async def body(_):
        raise LookupError("no such spelling")

    with pytest.raises(LookupError):
        await stage.sender.send("/v1/completions", None, body)
    assert (stage.sends, stage.outstanding()) == ([], 0)


async def test_a_server_that_cannot_be_asked_what_it_understands_is_one_that_cannot_be_reached():
    stage = Stage({URLS[0]: [GOOD], URLS[1]: [GOOD]})

    async def body(server):
        if server.id == URLS[0]:
            raise UnansweredError(REFUSED)
        return f"for {server.id}".encode()

    reply = await stage.sender.send("/v1/completions", None, body)
    assert (reply.server.id, reply.attempts, stage.sends) == (URLS[1], 2, [URLS[1]])
    assert stage.outstanding() == 0


async def test_the_servers_are_told_how_each_send_ended():
    stage = Stage({URLS[0]: [BUSY, GOOD]})
    told, give_back = [], stage.servers.give_back
    stage.servers.give_back = lambda server, verdict: (told.append(verdict), give_back(server, verdict))
    await stage.run()
    assert told == [Verdict.OVERLOAD, Verdict.SUCCESS]

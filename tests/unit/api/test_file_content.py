"""A file that lies in a store is answered as aiohttp answers one on disk."""

import aiohttp
import pytest
from aiohttp import web

from dispatcher.api.errors import answer_errors
from dispatcher.api.file_content import stream
from dispatcher.errors import StorageError
from dispatcher.queue.keeping import FileRecord

CONTENT = b"0123456789"


class Files:
    """Gives three bytes at a time, and may fail in the middle."""

    fails_at = None

    async def chunks(self, file_id, start=0, end=None):
        for at in range(start, end, 3):
            if self.fails_at is not None and at >= self.fails_at:
                raise StorageError(f"{file_id}: refused")
            yield CONTENT[at : min(at + 3, end)]


@pytest.fixture
async def ask():
    files, record = Files(), FileRecord("file-1", "ann", "x", "batch", len(CONTENT), 0.0)

    async def content(request):
        return await stream(request, files, record, {"X-Of-Ours": "1"})

    application = web.Application(middlewares=[answer_errors])
    application.router.add_get("/", content)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    async with aiohttp.ClientSession() as session:

        async def asked(method="GET", **headers):
            async with session.request(method, url, headers=headers) as answer:
                return answer.status, await answer.read(), answer.headers

        asked.files = files
        yield asked
    await runner.cleanup()


async def test_without_a_range_the_whole_is_sent_with_its_length(ask):
    status, content, headers = await ask()
    assert (status, content, headers["Content-Length"], headers["X-Of-Ours"]) == (200, CONTENT, "10", "1")
    assert headers["Accept-Ranges"] == "bytes"
    status, content, headers = await ask("HEAD")
    assert (status, content, headers["Content-Length"]) == (200, b"", "10")


@pytest.mark.parametrize(
    ("asked", "content", "told"),
    [
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=8-", b"89", "bytes 8-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=-30", CONTENT, "bytes 0-9/10"),
        ("bytes=0-", CONTENT, "bytes 0-9/10"),
        ("bytes=5-100", b"56789", "bytes 5-9/10"),
    ],
)
async def test_a_range_is_sent_by_itself(ask, asked, content, told):
    status, found, headers = await ask(Range=asked)
    assert (status, found, headers["Content-Range"]) == (206, content, told)
    assert headers["Content-Length"] == str(len(content))


async def test_a_range_that_the_file_does_not_have_is_refused(ask):
    status, content, headers = await ask(Range="bytes=10-20")
    assert (status, headers["Content-Range"]) == (416, "bytes */10")
    assert b"range_not_satisfiable" in content


@pytest.mark.parametrize(
    "headers",
    [{"Range": "bytes=0-1,4-5"}, {"Range": "lines=1-2"}, {"Range": "bytes=2-4", "If-Range": '"x"'}],
    ids=["several", "another unit", "a condition"],
)
async def test_a_range_that_need_not_be_heard_is_not(ask, headers):
    status, content, _ = await ask(**headers)
    assert (status, content) == (200, CONTENT)


async def test_an_answer_that_breaks_off_does_not_look_whole(ask):
    ask.files.fails_at = 6
    with pytest.raises(aiohttp.ClientError):
        await ask()

"""The dashboard's page and stream over HTTP, without a browser."""

import asyncio
import contextlib
import hashlib
import json
import re
import socket

import aiohttp
import pytest
import yarl
from service_stage import running, submit

from dispatcher.api import dashboard, events, feed
from dispatcher.app.service import SHUTDOWN_S
from dispatcher.testing import FakeServer

KEYS = [
    {"name": name, "role": role, "hash": f"sha256:{hashlib.sha256(f'{name}-key'.encode()).hexdigest()}"}
    for name, role in (("anna", "user"), ("bo", "user"), ("root", "admin"))
]


@pytest.fixture
async def fake():
    async with FakeServer() as server:
        yield server


@pytest.fixture
async def url(fake, tmp_path):
    async with running(tmp_path, [fake]) as address:
        yield address


@contextlib.asynccontextmanager
async def watching(url, path="/events", key=None):
    """Reads events: a function that returns the next one, as its name and its data."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        aiohttp.ClientSession(url, headers=headers, read_bufsize=4_000_000) as session,
        session.get(path) as answer,
    ):
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"

        async def following():
            async with asyncio.timeout(10):
                lines = [await answer.content.readline() for _ in range(3)]
            assert lines[2] == b"\n"
            return lines[0][7:-1].decode(), json.loads(lines[1][6:])

        yield following


async def test_a_watcher_is_told_the_history_first_and_then_a_snapshot_every_second(url):
    async with watching(url) as following:
        name, hello = await following()
        assert (name, hello["admin"], hello["history"]) == ("hello", True, [])
        told = [await following() for _ in range(3)]
    assert {name for name, _ in told} == {"snapshot"}
    assert told[2][1]["at"] - told[1][1]["at"] == pytest.approx(1.0, abs=0.5)
    assert [(node["state"], node["here"]) for node in told[2][1]["nodes"]] == [("active", True)]


async def test_answered_rows_show_up_in_the_jobs_the_servers_and_the_totals(url, fake):
    async with watching(url) as following:
        await following()
        job = await submit(url, 40, metadata={"name": "reviews"})
        for _ in range(15):
            _, told = await following()
            if told["jobs"]["shown"] and told["jobs"]["shown"][0]["ended_ago_s"] is not None:
                break
    shown = told["jobs"]["shown"][0]
    assert (shown["id"], shown["name"], shown["succeeded"]) == (job, "reviews", 40)
    (server,) = told["fleet"]["servers"]
    assert (server["id"], server["state"], server["succeeded"]) == (fake.url, "active", 40)


async def test_users_see_their_own_jobs_and_admins_all(fake, tmp_path):
    async with running(tmp_path, [fake], keys=KEYS) as url:
        own = await submit(url, 1, key="anna-key")
        others = await submit(url, 1, key="bo-key")
        for key, jobs in (("anna-key", {own}), ("bo-key", {others}), ("root-key", {own, others})):
            async with watching(url, key=key) as following:
                await following()
                _, told = await following()
                assert {job["id"] for job in told["jobs"]["shown"]} == jobs


async def test_without_a_key_there_is_the_page_and_no_data(fake, tmp_path):
    async with running(tmp_path, [fake], keys=KEYS) as url, aiohttp.ClientSession(url) as session:
        statuses = {}
        for path in ("/", "/static/main.js", "/events"):
            async with session.get(path) as answer:
                statuses[path] = answer.status
    assert statuses == {"/": 200, "/static/main.js": 200, "/events": 401}


@pytest.mark.parametrize("query", ["state=no-such-state", "find=" + "x" * 201])
async def test_what_cannot_be_asked_is_refused(url, query):
    async with aiohttp.ClientSession(url) as session, session.get(f"/events?{query}") as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["param"] == query.partition("=")[0]


async def test_a_watcher_chooses_among_the_servers(url, fake):
    for query, found in ((f"find={fake.port}", 1), ("find=elsewhere", 0), ("state=evicted", 0)):
        async with watching(url, f"/events?{query}") as following:
            await following()
            _, told = await following()
            assert (told["fleet"]["found"], len(told["fleet"]["servers"])) == (found, found)


async def test_who_does_not_read_is_let_go_and_holds_nobody_up(url, monkeypatch):
    monkeypatch.setattr(events, "STUCK_S", 0.5)
    monkeypatch.setattr(feed, "TICK_S", 0.02)
    monkeypatch.setattr(feed, "WATCHERS_MAX", 2)
    monkeypatch.setattr(feed.Feed, "snapshot", lambda *_: b'{"filler": "%b"}' % (b"x" * 500_000))
    host, port = url.removeprefix("http://").split(":")
    async with watching(url) as following:
        await following()
        with socket.create_connection((host, int(port))) as deaf:
            deaf.sendall(f"GET /events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            await _until(url, 503)
            for _ in range(20):
                assert (await following())[0] == "snapshot"
            await _until(url, 200)


async def test_there_are_so_many_watchers_and_no_more(url, monkeypatch):
    monkeypatch.setattr(feed, "WATCHERS_MAX", 1)
    async with watching(url) as following:
        await following()
        await _until(url, 503)
    await _until(url, 200)


async def _until(url, status):
    """Until one more watcher is answered this."""
    async with asyncio.timeout(10), aiohttp.ClientSession(url) as session:
        while True:
            async with session.get("/events") as answer:
                if answer.status == status:
                    return
            await asyncio.sleep(0.05)


async def test_open_watchers_do_not_hold_up_the_end(fake, tmp_path):
    now = asyncio.get_running_loop().time
    async with contextlib.AsyncExitStack() as open_watcher:
        async with running(tmp_path, [fake]) as url:
            following = await open_watcher.enter_async_context(watching(url))
            await following()
            began = now()
        assert now() - began < SHUTDOWN_S - 1


async def test_every_file_of_the_page_is_served_under_a_strict_policy(url):
    async with aiohttp.ClientSession(url) as session:
        for path in ("/", *(f"/static/{name}" for name in dashboard.FILES)):
            async with session.get(path) as answer:
                assert answer.status == 200
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "name",
    ["..%2f..%2f__init__.py", "../dashboard.py", "%2e%2e/feed.py", "main.js%00", "index.html", "nothing"],
)
async def test_no_other_file_is_served(url, name):
    path = yarl.URL(f"{url}/static/{name}", encoded=True)
    async with aiohttp.ClientSession() as session, session.get(path) as answer:
        assert answer.status == 404


def test_the_page_holds_no_inline_script_or_style_and_names_only_files_that_are_served():
    page = (dashboard.STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", page)
    assert set(re.findall(r'(?:src|href)="static/([^"]+)"', page)) <= dashboard.FILES.keys()
    assert {path.name for path in dashboard.STATIC.iterdir()} == {*dashboard.FILES, "index.html"}


def test_scripts_never_make_markup_of_data_and_load_nothing_from_elsewhere():
    for path in dashboard.STATIC.glob("*.js"):
        text = path.read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        )
        assert set(re.findall(r"https?://[^\"'\s]+", text)) <= {"http://www.w3.org/2000/svg"}

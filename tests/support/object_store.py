"""A real S3 server (moto's) on loopback, and a proxy in front of it that can refuse."""

import asyncio
import contextlib
import importlib.util
import io
import itertools
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from vllm_fleet import free_port

START_S_MAX = 30.0
HOP_HEADERS = {"connection", "transfer-encoding", "keep-alive", "date", "server", "content-length"}


class S3:
    """The server, and a bucket for each test."""

    def __init__(self, port):
        import boto3

        self.endpoint = f"http://127.0.0.1:{port}"
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id="key-of-the-test",
            aws_secret_access_key="secret-of-the-test",  # noqa: S106
            region_name="us-east-1",
        )
        self._numbers = itertools.count()

    def bucket(self):
        name = f"bucket-{next(self._numbers)}"
        self.client.create_bucket(Bucket=name)
        return Bucket(self, name)

    def environment(self, endpoint=None):
        """What a process is told, as it is told anywhere."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": "key-of-the-test",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
            "AWS_REGION": "us-east-1",
        }


class Bucket:
    def __init__(self, s3, name):
        self.s3, self.name, self.url = s3, name, f"s3://{name}/some/prefix"

    def keys(self, folder=""):
        """All keys below the prefix, without it."""
        pages = self.s3.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        keys = [found["Key"] for page in pages for found in page.get("Contents", ())]
        assert all(key.startswith("some/prefix/") for key in keys)
        return sorted(
            key.removeprefix("some/prefix/") for key in keys if key.startswith(f"some/prefix/{folder}")
        )

    def read(self, key):
        return self.s3.client.get_object(Bucket=self.name, Key=f"some/prefix/{key}")["Body"].read()

    def write(self, key, content):
        self.s3.client.put_object(Bucket=self.name, Key=f"some/prefix/{key}", Body=content)

    def uploads(self):
        """Multipart uploads that are not at their end."""
        return self.s3.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])


class Proxy:
    """Passes requests on, or answers each with 503 while it is `refusing`."""

    def __init__(self, target):
        self.refusing = False
        self.passed, self.refused = 0, 0
        self._target = target

    async def __aenter__(self):
        self._session = aiohttp.ClientSession(auto_decompress=False)
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        port = free_port()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.endpoint = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()
        await self._session.close()

    async def _pass(self, request):
        if self.refusing:
            self.refused += 1
            return web.Response(status=503, text="<Error><Code>SlowDown</Code></Error>")
        self.passed += 1
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_HEADERS}
        body = io.BytesIO(await request.read())
        async with self._session.request(
            request.method,
            self._target + request.raw_path,
            headers=headers,
            data=body,
            skip_auto_headers={"Content-Type"},
        ) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_HEADERS}
            if request.method == "HEAD":
                kept["Content-Length"] = answer.headers.get("Content-Length", "0")
            return web.Response(status=answer.status, headers=kept, body=await answer.read())


@contextlib.contextmanager
def _running(folder):
    port = free_port()
    command = [Path(sys.executable).with_name("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "moto.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + START_S_MAX
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, (folder / "moto.log").read_text()
            assert time.monotonic() < until, "moto did not start"
            time.sleep(0.05)
        yield S3(port)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """Skips where moto is not installed, unless services are required."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("boto3") is None:
        required = os.environ.get("DISPATCHER_REQUIRE_SERVICES") == "1"
        (pytest.fail if required else pytest.skip)("moto is not installed: pip install --group objects")
    with _running(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def bucket(s3, monkeypatch):
    """An empty bucket; this process is told of the server."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return s3.bucket()


async def until(condition, timeout_s=60.0):
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # it is polled
            await asyncio.sleep(0.05)

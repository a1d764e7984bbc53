"""The README's curl examples, as they stand there, in one shell, one block after the other."""

import asyncio
import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

from dispatcher.api.openapi import read_description

pytestmark = [pytest.mark.services, pytest.mark.timeout(120)]

README = (Path(__file__).parents[2] / "README.md").read_text()
HEADING = "### With curl\n"
APART = "======"
PORTS = (8000, 8080)


def blocks():
    section = README.split(HEADING, 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def missing(what):
    required = os.environ.get("DISPATCHER_REQUIRE_SERVICES") == "1"
    (pytest.fail if required else pytest.skip)(f"no {what}")


@pytest.fixture
async def said(tmp_path):
    """What each block printed: in a network of its own where there can be one, as its ports are the usual."""
    for tool in ("bash", "curl", "jq"):
        shutil.which(tool) or missing(tool)
    alone = await run("unshare -rn ip link set lo up", tmp_path) == (0, "")
    if not alone and any(map(in_use, PORTS)):
        missing("network of its own, and its ports are in use")
    script = tmp_path / "examples.sh"
    script.write_text("set -e\n" + f"echo {APART}\n".join(blocks()))
    before = "ip link set lo up && exec " if alone else "exec "
    shell = "unshare -rn bash -c" if alone else "bash -c"
    status, out = await run(f"{shell} '{before} bash {script.name}'", tmp_path)
    logs = "".join((tmp_path / name).read_text() for name in ("serve.log", "fake-server.log"))
    assert status == 0, out + logs
    return [block.splitlines() for block in out.split(f"{APART}\n")]


def in_use(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def run(command, directory):
    """A command of the shell, to its end: its exit status, and what it said."""
    names = {name: value for name, value in os.environ.items() if not name.startswith("DISPATCHER_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_shell(
        command,
        cwd=directory,
        env={**names, "PATH": path, "no_proxy": "*"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(90):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, 9)
            await process.wait()
    return process.returncode, out.decode()


async def test_the_curl_examples_print_what_they_are_there_for(said, tmp_path):
    ready, batch, pause, end, live, servers = said
    assert ready[-1] == "ready"
    status, counts = json.loads(batch[-1])
    assert status in ("validating", "in_progress")
    assert counts["completed"] < 200
    assert [json.loads(line) for line in pause] == [[True, 1], None, False]
    *_, ended, verified = end
    assert json.loads(ended) == ["completed", 200, {}]
    assert verified
    labels = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert [label["custom_id"] for label in labels] == [f"review-{number}" for number in range(1, 201)]
    assert live[0] == "qwen"
    assert json.loads(live[1])["role"] == "assistant"
    events = [line.removeprefix("data: ") for line in live[2:] if line]
    assert len(events) > 2
    assert events[-1] == "[DONE]"
    assert json.loads(events[0])["object"] == "chat.completion.chunk"
    url, state, succeeded = json.loads(servers[0])
    assert (url, state) == ("http://127.0.0.1:8000", "active")
    assert succeeded >= 202
    assert set(servers[1:]) == set(read_description()["paths"])

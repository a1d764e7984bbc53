"""`llm-annotator`, which knows nothing of us, at the live endpoint as if it were a vLLM server.

It gets an environment of its own (`peers.py`): it wants Python 3.12 and an older `openai`.
"""

import asyncio
import contextlib
import json
import os
import re
from pathlib import Path

import aiohttp
import pytest
from commands import until

pytestmark = [pytest.mark.services, pytest.mark.timeout(400)]
ROWS = 500
SCRIPT = Path(__file__).parents[1] / "support" / "peer_annotates.py"


async def annotated(python, url, directory):
    """What the peer makes of the rows, and all that it said."""
    process = await asyncio.create_subprocess_exec(
        *(python, SCRIPT, f"{url}/v1", str(ROWS), directory),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(directory), "NO_PROXY": "127.0.0.1"},
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 0, err.decode()
    return [json.loads(line) for line in out.splitlines()], err.decode()


async def started(cli, *options):
    """A fake server in a process of its own, which can be killed."""
    command = await cli.start("fake-server", "--port", "0", "--answer-tokens", "30", *options)
    await until(lambda: " serves " in command.out)
    return command, command.out.split()[0]


async def serving(cli, directory, *urls):
    """A service before these servers."""
    flags = [flag for url in urls for flag in ("--server", url)]
    env = {
        "DISPATCHER_API__PORT": "0",
        "DISPATCHER_STORAGE__URL": str(directory / "data"),
        "DISPATCHER_TELEMETRY__LOG_FORMAT": "json",
    }
    command = await cli.start("serve", *flags, env=env)
    port = (await until(lambda: re.search(r'"port": ?(\d+)', command.err)))[1]
    await until(lambda: command.err.count('"server_active"') == len(urls))
    return f"http://127.0.0.1:{port}"


async def attempts(http, service, server):
    """Ended attempts at a server, by verdict."""
    text = await (await http.get(f"{service}/metrics")).text()
    series = rf'^dispatcher_attempts_total{{server="{re.escape(server)}",verdict="(\w+)"}} ([\d.e+]+)$'
    return {verdict: float(count) for verdict, count in re.findall(series, text, re.MULTILINE)}


async def killed_at_work(http, service, command, server):
    """Kill -9 a server that has answered some of the rows, and has more."""
    async with asyncio.timeout(60):
        while (await attempts(http, service, server)).get("success", 0) < 40:  # noqa: ASYNC110  # it is polled
            await asyncio.sleep(0.05)
        while (await (await http.get(f"{server}/load")).json())["server_load"] < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await command.kill()


async def test_a_peers_client_annotates_500_rows_and_never_hears_of_the_server_that_dies(
    cli, llm_annotator_python, tmp_path
):
    servers = [await started(cli, "--max-sequences", "16") for _ in range(3)]
    service = await serving(cli, tmp_path, *(url for _, url in servers))
    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as tasks:
        annotating = tasks.create_task(annotated(llm_annotator_python, service, tmp_path / "through-us"))
        await killed_at_work(http, service, *servers[0])
        rows, said = await annotating
        ends = await attempts(http, service, servers[0][1])
    assert ends["server_fault"] >= 1, "it died with rows in hand"
    assert [row["review"] for row in rows] == [f"row-{number:05}" for number in range(ROWS)]
    assert {(row["error"], row["finish_reason"]) for row in rows} == {(None, "stop")}
    assert not re.search("warning|error", said.replace("FutureWarning", ""), re.IGNORECASE), said
    _, alone = await started(cli, "--instant")
    direct, _ = await annotated(llm_annotator_python, alone, tmp_path / "direct")
    assert rows == direct  # a fake server answers the same body with the same text, whichever it is

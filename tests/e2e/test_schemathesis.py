"""schemathesis against the service and its description: no failure, and no answer but those described.

Seeded: a run that fails can be had again. Two checks are left out: `positive_data_acceptance`, as no schema
says which jobs and files there are, and `ensure_resource_availability`, as a batch goes with its job, which
has another path.
"""

import asyncio
import json
import os
import shutil
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from keyed_service import ADMIN, TOKEN, USER, keyed, registration
from service_stage import submit

from dispatcher.testing import FakeServer, FakeServerSettings, Match, Respond, Slow

pytestmark = [pytest.mark.services, pytest.mark.timeout(180)]

HOOKS = Path(__file__).parents[1] / "support" / "schemathesis_hooks.py"
FLEET = FakeServerSettings(models=("qwen", "fake-model"))
REFUSAL = Respond(
    400, '{"error": {"message": "no", "type": "BadRequestError", "param": "messages", "code": 400}}'
)
CHECKS = {
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "allow_header_conformance",
    "unsupported_method",
    "use_after_free",
    "ignored_auth",
}
FLEETS = "^/servers"
ALL_PHASES = "examples,coverage,fuzzing,stateful"
FIXED_PHASES = "examples,coverage"
JOBS = 12


@dataclass(frozen=True)
class Run:
    """Which operations are called, by whom, and how often each with data that is made up."""

    key: str | None
    operations: tuple[str, ...] = ()
    examples: int = 1
    phases: str = "examples,coverage,fuzzing"
    unchecked: frozenset[str] = frozenset()


RUNS = {
    # The fleet is left as it is: while a server is new, and has named no models, live requests are told 503.
    "an admin": Run(ADMIN, ("--exclude-tag", "live", "--exclude-path-regex", FLEETS), 15, ALL_PHASES),
    "an admin with the fleet": Run(ADMIN, ("--include-path-regex", FLEETS), 20),
    "a server that registers": Run(TOKEN, ("--include-path-regex", f"{FLEETS}/(de)?register"), 20),
    "a user": Run(USER, ("--exclude-tag", "live"), phases=FIXED_PHASES),
    # What a server takes is its own business, and it takes more than is described.
    "a user, live": Run(
        USER, ("--include-tag", "live"), 15, unchecked=frozenset({"negative_data_rejection"})
    ),
    # Whoever has no key is told 401 before 405.
    "nobody": Run(None, phases=FIXED_PHASES, unchecked=frozenset({"unsupported_method"})),
}


@pytest.fixture
def schemathesis():
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = shutil.which("schemathesis", path=beside)
    if command is None:
        required = os.environ.get("DISPATCHER_REQUIRE_SERVICES") == "1"
        (pytest.fail if required else pytest.skip)("schemathesis is not installed")
    return command


@pytest.mark.parametrize("who", RUNS)
async def test_the_service_answers_as_it_is_described(who, schemathesis, tmp_path, capfd):
    wanted = RUNS[who]
    async with AsyncExitStack() as stack:
        fleet = [await stack.enter_async_context(FakeServer(FLEET)) for _ in range(3)]
        urls = [server.url for server in fleet]
        service = keyed(tmp_path / "data", servers=urls[:2], registration=registration())
        asking = await stack.enter_async_context(service)
        await asking.until(lambda servers: all(servers[url]["state"] == "active" for url in urls[:2]))
        for server in fleet:
            server.inject(Slow(600.0), Match(text="row-10"))
            server.inject(REFUSAL, Match(text="row-2"))
        known = {**await jobs_and_files(asking), "server-url": [urls[2], "http://127.0.0.1:9/a/v1"]}
        auth = ("--header", f"Authorization: Bearer {wanted.key}") if wanted.key else ()
        status, told = await run(
            *(schemathesis, "run", f"{asking.url}/openapi.json", *auth, *wanted.operations),
            *("--exclude-path", "/events"),  # it has no end
            *("--phases", wanted.phases, "--max-examples", str(wanted.examples), "--seed", "4"),
            *("--checks", ",".join(sorted(CHECKS - wanted.unchecked)), "--warnings", "off"),
            *("--continue-on-failure", "--no-shrink", "--request-timeout", "40", "--workers", "1"),
            directory=tmp_path,
            env={"SCHEMATHESIS_HOOKS": str(HOOKS), "KNOWN": json.dumps(known)},
        )
    assert status == 0, told
    assert "No issues found" in told, told
    logged = "".join(capfd.readouterr())
    assert "request_failed" not in logged, logged


async def jobs_and_files(asking):
    """Jobs that have ended with a failed row, and jobs that go on for as long as the test does."""
    sizes = [(11 if number % 3 == 0 else 3) for number in range(JOBS)]
    jobs = [await submit(asking.url, size, key=USER, limit=1) for size in sizes]
    files = [(await asking.get(f"/v1/batches/{job}", key=USER))[1]["input_file_id"] for job in jobs]
    return {"job-id": jobs, "file-id": files}


async def run(*argv, directory, env):
    """Run a command to its end: its exit status, and what it said."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=directory,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120", **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(150):
            told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, told.decode(errors="replace")

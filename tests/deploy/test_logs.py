"""What a run with every kind of fault says, and what it must not say."""

import pytest
from jobs import rows

from dispatcher.testing import Die, Match, Respond

PROMPT, KEY = "the-patient-has-gout", "sk-hunter2"
QUOTING = '{{"error": {{"message": "bad row: {0}", "type": "{2}", "code": {1}}}}}'


@pytest.fixture
async def faulty(serve):
    """Two servers that say in every fault what they were asked."""
    servers = [await serve(api_key=KEY) for _ in range(2)]
    for server in servers:
        server.inject(Respond(200, PROMPT), Match(text="row-00009"))
        for number, status in enumerate((400, 429, 500, 503, 418, 404, 502)):
            body = QUOTING.format(PROMPT, status, "BadRequestError")
            server.inject(Respond(status, body), Match(text=f"row-0000{number}"), times=2)
        server.inject(Die(seconds=0.3), Match(text="row-00008"), times=1)
    lacking = QUOTING.format(PROMPT, 404, "NotFoundError").replace("404", '"model_not_found"')
    servers[1].inject(Respond(404, lacking), Match(after=25), times=1)
    return servers


def argv(job, servers):
    job.write(rows(40, text=PROMPT))
    return (*job.argv(*servers), "--log-format", "json", "--api-key", KEY)


DEBUG = {"DISPATCHER_TELEMETRY__LOG_LEVEL": "debug", "DISPATCHER_POOL__READMIT_BACKOFF_MIN_S": "0.2"}


async def test_no_prompt_and_no_key_is_in_the_log_of_a_faulty_run(cli, job, faulty):
    done = await cli.run(*argv(job, faulty), env=DEBUG)
    assert done.status in (0, 1), done.err
    assert PROMPT not in done.err
    assert KEY not in done.err
    events = {entry["event"] for entry in done.events}
    assert {
        "server_active",
        "server_suspect",
        "server_mismatched",
        "attempt_failed",
        "run_finished",
    } <= events
    failed = done.named("attempt_failed")
    assert {"job", "custom_id", "request_id", "server", "verdict", "reason"} <= set(failed[0])
    assert {"doubtful", "overload", "server_fault", "mismatch"} <= {entry["verdict"] for entry in failed}


async def test_what_was_said_is_there_where_it_is_asked_for_with_a_warning(cli, job, faulty):
    done = await cli.run(*argv(job, faulty), env={**DEBUG, "DISPATCHER_TELEMETRY__LOG_PROMPTS": "true"})
    assert [entry["level"] for entry in done.named("prompts_are_logged")] == ["warning"]
    assert any(PROMPT in entry["reason"] for entry in done.named("attempt_failed"))
    assert any(PROMPT in entry["reason"] for entry in done.named("server_mismatched"))
    assert any(PROMPT in entry["body"] for entry in done.named("attempt_failed"))
    assert KEY not in done.err

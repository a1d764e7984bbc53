"""What a run with every kind of fault says, and what it must not say."""

import pytest
from commands import until
from jobs import CHAT, MODEL, rows
from services import serving
from structlog.testing import capture_logs

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
    servers[0].inject(Die(seconds=0.3), Match(text="row-00008"), times=1)
    lacking = QUOTING.format(PROMPT, 404, "NotFoundError").replace("404", '"model_not_found"')
    servers[1].inject(Respond(404, lacking), Match(after=3), times=1)
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


async def test_a_live_request_that_fails_is_logged_by_its_id_without_what_was_said(tmp_path, serve):
    server = await serve()
    server.inject(Respond(500, QUOTING.format(PROMPT, 500, "InternalServerError")), Match(text=PROMPT))
    body = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}]}
    for asked in (False, True):
        with capture_logs() as logs:
            settings = {"telemetry": {"log_prompts": asked}}
            async with serving(tmp_path / str(asked), server, **settings) as stage:
                await until(lambda: any(entry["event"] == "server_active" for entry in logs))
                headers = {"X-Request-Id": "mine"}
                async with stage.http.post(stage.url + CHAT, json=body, headers=headers) as answer:
                    assert answer.status == 500
        (told,) = [entry for entry in logs if entry["event"] == "attempt_failed"]
        assert (told["request_id"], told["server"], told["verdict"]) == ("mine", server.url, "doubtful")
        assert (PROMPT in str(logs)) == asked

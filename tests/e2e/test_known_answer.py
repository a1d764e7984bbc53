"""A known answer keeps a server out whose weights are corrupt, and lets it in again once they are not."""

import json

import httpx2
import pytest
from commands import until
from jobs import row, rows, sends

from dispatcher.config import KnownAnswer
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.faults import Match, Respond
from dispatcher.vllm.known_answer import question_of, texts_of

QUICK = {
    "DISPATCHER_POOL__PROBE_INTERVAL_S": "0.1",
    "DISPATCHER_POOL__READMIT_BACKOFF_MIN_S": "0.1",
    "DISPATCHER_POOL__READMIT_BACKOFF_MAX_S": "0.2",
    "DISPATCHER_POOL__SCRAPE_INTERVAL_S": "0.2",
}
SLOW = EngineSettings(max_sequences=8, decode_step_s=0.01)
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
GARBAGE = Respond(
    200,
    json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": "fake-model",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "!!!!!!!!"},
                    "finish_reason": "length",
                }
            ],
        }
    ),
)
SAID = "answered '!!!!!!!!', where"


async def question_for(server):
    """The question, and what a server with whole weights answers to it."""
    known = KnownAnswer.model_validate({"messages": MESSAGES, "expect": "?"})
    question = question_of(known, "fake-model")
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.post(server.url + question.url, content=question.body)
    return {"messages": MESSAGES, "expect": texts_of(answer.content)[0]}


@pytest.fixture
def environment():
    def make(question):
        return {**QUICK, "DISPATCHER_POOL__CANARY": json.dumps(question)}

    return make


async def test_a_server_with_corrupt_weights_gets_no_row_and_it_is_told_what_it_answered(
    cli, job, serve, tmp_path
):
    whole, corrupt = [await serve() for _ in range(2)]
    corrupt.inject(GARBAGE)
    question = await question_for(whole)
    config = tmp_path / "c.yaml"
    config.write_text(json.dumps({"pool": {"canary": question}}))
    argv = job.write(rows(200)).argv(whole, corrupt)
    done = await cli.run(*argv, "--config", config, "--log-format", "json")
    assert done.status == 0, done.err
    assert len(sends(whole)) == 200
    assert sends(corrupt) == []
    assert len(corrupt.requests) > 0, "it was asked"
    (told,) = done.named("server_mismatched")
    assert told["server"] == corrupt.url
    assert told["reason"].startswith(SAID)


async def test_a_fleet_of_corrupt_servers_gets_no_row_and_the_wait_says_why(cli, job, serve, environment):
    whole, corrupt = [await serve() for _ in range(2)]
    corrupt.inject(GARBAGE)
    argv = job.write(rows(2)).argv(corrupt)
    command = await cli.start(*argv, "--log-format", "json", env=environment(await question_for(whole)))
    waits = await until(lambda: [line for line in command.err.splitlines() if "waiting_for_servers" in line])
    assert f"mismatched ({SAID}" in waits[0]
    assert sends(corrupt) == []
    corrupt.clear()
    done = await command.wait()
    assert done.status == 0, done.err
    assert len(sends(corrupt)) == 2


async def test_a_server_that_becomes_corrupt_is_out_and_what_it_was_answering_is_done_elsewhere(
    cli, job, serve, environment
):
    whole, swapped = [await serve(engine=SLOW, answer_tokens=20) for _ in range(2)]
    argv = job.write(rows(200)).argv(whole, swapped)
    flags = ["--concurrency", 8, "--log-format", "json", "--max-attempts", 1]
    command = await cli.start(*argv, *flags, env=environment(await question_for(whole)))
    await until(lambda: len(sends(swapped)) > 16)
    swapped.inject(GARBAGE, Match(text=MESSAGES[0]["content"]))
    await until(lambda: "server_mismatched" in command.err)
    await until(lambda: swapped.in_flight == 0)
    given = len(sends(swapped))
    await until(lambda: len(sends(whole, swapped)) > given + 40)
    assert len(sends(swapped)) == given
    assert swapped.disconnects > 0, "what it was answering was given up"
    swapped.clear()
    await until(lambda: len(sends(swapped)) > given)
    done = await command.wait()
    assert done.status == 0, done.err
    assert len(job.ids) == 200


async def test_a_server_that_writes_no_text_is_not_asked_for_any(cli, job, serve, environment):
    writer, embedder = [await serve() for _ in range(2)]
    missing = Respond(404, '{"detail":"Not Found"}')
    for route in ("/v1/chat/completions", "/v1/completions"):
        embedder.inject(missing, Match(route=route))
    embeddings = [row(number, "/v1/embeddings") for number in range(20)]
    done = await cli.run(*job.write(embeddings).argv(embedder), env=environment(await question_for(writer)))
    assert done.status == 0, done.err
    assert len(sends(embedder)) == 20

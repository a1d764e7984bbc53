"""A real vLLM that serves corrupt weights, told from one with whole ones by an answer that is known."""

import array
import json
import shutil

import httpx2
import pytest
from real_rows import EMBEDDINGS, MODEL, long_texts, mixed
from vllm_fleet import VllmServer, installation

from dispatcher.config import KnownAnswer
from dispatcher.vllm.known_answer import question_of, texts_of

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

MESSAGES = [{"role": "user", "content": "Classify the sentiment of this text: the lazy dog."}]


def answer_of(server):
    """What a server's model really answers: its weights are random, so nobody could know otherwise."""
    question = question_of(KnownAnswer.model_validate({"messages": MESSAGES, "expect": "?"}), MODEL)
    answer = httpx2.post(
        server.url + question.url,
        content=question.body,
        headers={"Content-Type": "application/json"},
        trust_env=False,
        timeout=60,
    )
    return texts_of(answer.raise_for_status().content)[0]


def with_corrupt_weights(source, target):
    """The same model with its numbers in another order: it loads, answers at once, and says something else.

    A safetensors file is the length of its header (8 bytes), the header (JSON), and the numbers.
    """
    shutil.copytree(source, target)
    (weights,) = target.glob("*.safetensors")
    whole = weights.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    numbers = array.array("f", whole[start:])
    numbers.reverse()
    weights.write_bytes(whole[:start] + numbers.tobytes())
    return target


@pytest.fixture
def corrupt(fleet, tmp_path):
    model = with_corrupt_weights(fleet.first.root, tmp_path / "corrupt")
    server = VllmServer(installation(), tmp_path, model=str(model), names=(MODEL,))
    server.start()
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


def test_a_server_with_corrupt_weights_gets_no_row_and_one_that_embeds_gets_its_own(fleet, new_job, corrupt):
    expected = answer_of(fleet.first)
    assert answer_of(fleet.second) == expected
    assert expected[:40] not in answer_of(corrupt)
    asked = len(corrupt.posts())
    rows = [*long_texts(150, tokens=40), *(row for row in mixed(90) if row.url == EMBEDDINGS)]
    canary = {"messages": MESSAGES, "expect": expected[:40]}
    job = new_job(rows, [fleet.first, corrupt, fleet.embedder], canary=canary)
    job.start()
    assert job.ended(90) == 0, job.tail()
    job.verify()
    servers = {outcome["provenance"]["server"] for outcome in job.answers().values()}
    assert servers == {fleet.first.url, fleet.embedder.url}
    mismatches = [
        entry
        for entry in map(json.loads, job.log.read_text().splitlines())
        if entry["event"] == "server_mismatched"
    ]
    assert {entry["server"] for entry in mismatches} == {corrupt.url}
    assert repr(answer_of(corrupt)[:20])[1:-1] in mismatches[0]["reason"]
    questions = corrupt.posts()[asked:-1]
    assert questions, "it was asked"
    assert {post.split()[0] for post in questions} == {"/v1/chat/completions"}

"""500 rows labelled by each peer and by us, on the same real server: the same answers at temperature 0."""

import json
import os
import subprocess
import time
from pathlib import Path
from random import Random

import pytest
from peer_labels import AT_ONCE, LABELS
from vllm_fleet import VllmServer, installation

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]
ROWS = 500
SCRIPT = Path(__file__).parents[1] / "support" / "peer_labels.py"
WORDS = [
    "film",
    "meal",
    "hotel",
    "phone",
    "trip",
    "chair",
    "lovely",
    "dull",
    "dear",
    "broken",
    "joy",
    "stone",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One real server, warm."""
    server = VllmServer(installation(), tmp_path_factory.mktemp("vllm"), model="tiny", names=("tiny",))
    try:
        server.start()
        server.wait_until_ready()
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def table(tmp_path, ollama_classifier_python):
    """Rows with what `ollama-classifier` asks about them, and the same as ready conversations."""
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": text(number)}) + "\n" for number in range(ROWS)))
    run_peer(ollama_classifier_python, "prompts", "-", path, tmp_path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**row, "messages": messages(row)}) + "\n" for row in rows))
    return path


def text(number):
    """Words without sense, as is the model; how many there are is what its answers vary by."""
    random = Random(number)
    return " ".join([str(number), *random.choices(WORDS, k=random.randint(1, 80))])


def messages(row):
    return [{"role": "system", "content": row["system"]}, {"role": "user", "content": row["prompt"]}]


def run_peer(python, peer, url, table, directory):
    """What the peer prints, as JSON; and nothing goes out to the network."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(directory), "NO_PROXY": "127.0.0.1"}
    command = [python, SCRIPT, peer, url, table, directory / peer]
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}


async def ours(cli, table, url, name, *flags):
    """What `dispatcher annotate` makes of it; the times are without and with the command's start."""
    output = table.with_name(f"{name}.jsonl")
    asked = [
        "--messages-column",
        "messages",
        "--labels",
        ",".join(LABELS),
        "--server",
        url,
        "--model",
        "tiny",
    ]
    sampling = ["--temperature", 0, "--max-tokens", 32, "--concurrency", AT_ONCE, "--log-format", "json"]
    began = time.perf_counter()
    done = await cli.run("annotate", table, "-o", output, *asked, *sampling, *flags, timeout_s=240)
    whole = time.perf_counter() - began
    assert done.status == 0, done.err
    seconds = done.named("run_finished")[0]["seconds"]
    answers = [json.loads(line)["answer"] for line in output.read_text().splitlines()]
    return {"seconds": seconds, "whole": round(whole, 1), "answers": answers}


def told(made):
    counts = {label: made["answers"].count(label) for label in LABELS}
    whole = f", {made['whole']} with its start" if "whole" in made else ""
    pairs = zip(made.get("predictions", made["answers"]), made["answers"], strict=True)
    others = sum(predicted != answer for predicted, answer in pairs)
    return f"{made['seconds']} s{whole}; {counts}, of which it changes {others}"


async def test_500_rows_get_the_same_labels_from_each_of_the_peers_and_from_us(
    cli, server, table, llm_annotator_python, ollama_classifier_python, capsys
):
    await ours(cli, table, server, "warm")  # the server's prefix cache then helps all alike
    found = {
        "dispatcher annotate": await ours(cli, table, server, "plain"),
        "llm-annotator 0.18.0": run_peer(llm_annotator_python, "llm-annotator", server, table, table.parent),
        "ollama-classifier 0.6.0": run_peer(
            ollama_classifier_python, "ollama-classifier", server, table, table.parent
        ),
    }
    with capsys.disabled():
        for name, made in found.items():
            print(f"\n{name}: {told(made)}", end=" ")  # noqa: T201
    answers = found["dispatcher annotate"]["answers"]
    assert len(answers) == ROWS
    assert len(set(answers)) > 1
    assert {name: made["answers"] == answers for name, made in found.items()} == dict.fromkeys(found, True)

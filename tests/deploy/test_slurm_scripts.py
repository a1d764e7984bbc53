"""What the batch scripts decide: what is started again, what ends, what goes back into the queue.

Slurm's commands and the dispatcher are stand-ins here; tests/deploy/test_slurm.py has real ones.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)
SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
STAND_INS = {
    # Two tasks on this machine. Options before the command, which is a bash.
    "srun": """
while [ "$1" != bash ]; do
  case $1 in --output=*) log=${1#--output=};; esac
  echo "$1" >> srun.options; shift
done
echo "${SRUN_CPUS_PER_TASK:-}" > srun.cpus
for task in 0 1; do SLURM_PROCID=$task "$@" > "${log/\\%t/$task}" 2>&1 & pids="${pids:-} $!"; done
echo "$pids" > srun.tasks
trap 'kill -TERM $pids' TERM
for pid in $pids; do
  while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done
  wait "$pid" || status=$?
done
exit "${status:-0}"
""",
    "scontrol": """
case $1 in show) echo "JobId=7 JobState=${JOB_STATE:-RUNNING} Reason=None";; *) echo "$*" >> requeued;; esac
""",
    "scancel": 'echo "$*" >> cancelled',
    "sleep": "exec /bin/sleep 0.05",
    "curl": "[ -e serve.runs ]",
    # A command that runs until a file `NAME.ends` says with which status, or a signal: then with 3.
    "dispatcher": """
echo "$*" >> dispatcher.called
case $1 in submit) echo batch_1; exit;; watch | fetch) ;; serve | register) on_term=0;; esac
trap "exit ${on_term:-3}" TERM
echo > "$1.runs"
until [ -s "$1.ends" ]; do /bin/sleep 0.05; done
exit "$(cat "$1.ends")"
""",
    "server": """
echo "$PORT $MODEL" >> server.starts
trap 'echo x >> server.ended; exit 0' TERM
if [ -e server.fails ]; then rm -f "$(head -1 server.fails)" ; exit 9; fi
while :; do /bin/sleep 0.05; done
""",
}


class Batch:
    """One script, as Slurm would start it, in a directory of its own."""

    def __init__(self, folder, script, curl=STAND_INS["curl"], **environment):
        self.folder = folder
        bin_ = folder / "bin"
        bin_.mkdir()
        for name, text in {**STAND_INS, "curl": curl}.items():
            (bin_ / name).write_text(f"#!/bin/bash\n{text}")
            (bin_ / name).chmod(0o755)
        given = {
            "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "INPUT": "in.jsonl",
            "OUTPUT": "out.jsonl",
            "MODEL": "a model",
            "SERVER_COMMAND": "server",
            **environment,
        }
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                ["bash", SCRIPTS / script],
                cwd=folder,
                env=given,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def read(self, name):
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def until(self, condition):
        until = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < until, self.read("log")
            time.sleep(0.02)

    def running(self, command="run", servers=2):
        self.until(lambda: self.read(f"{command}.runs") and len(self.starts()) >= servers)
        return self

    def starts(self):
        return self.read("server.starts").splitlines()

    def end(self, command, status):
        (self.folder / f"{command}.ends").write_text(str(status))
        return self

    def term(self):
        self.process.send_signal(signal.SIGTERM)
        return self

    def status(self):
        return self.process.wait(timeout=30)


@pytest.fixture
def batch(tmp_path):
    begun = []

    def begin(script, fails=None, **environment):
        if fails is not None:  # every start of a server, or the first alone
            (tmp_path / "server.fails").write_text("server.fails" if fails == "once" else "nothing")
        begun.append(Batch(tmp_path, script, **environment))
        return begun[0]

    yield begin
    for each in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.wait()


@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_run_s_own_end_is_the_job_s_and_ends_the_servers(batch, status):
    job = batch("run.sbatch").running().end("run", status)
    assert job.status() == status
    assert job.read("requeued") == ""
    assert "--model a model --servers-file out.jsonl.slurm/7.0/servers.txt" in job.read("dispatcher.called")
    assert {"--no-kill", "--wait=0", "--kill-on-bad-exit=0"} <= set(job.read("srun.options").split())


def test_a_run_that_is_to_stop_goes_back_into_the_queue(batch):
    job = batch("run.sbatch").running().term()
    assert job.status() == 3
    assert job.read("requeued") == "requeue 7\n"


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED"])
def test_a_run_that_is_cancelled_does_not_come_back(batch, state):
    job = batch("run.sbatch", JOB_STATE=state).running().term()
    assert job.status() == 3
    assert job.read("requeued") == ""


def test_a_run_that_stops_by_itself_does_not_begin_again_for_ever(batch):
    job = batch("run.sbatch").running().end("run", 3)  # a full disk, no server within --wait-for-servers
    assert job.status() == 3
    assert job.read("requeued") == ""


def test_servers_that_do_not_stay_end_the_run_and_say_where_to_look(batch):
    job = batch("run.sbatch", fails="always")
    assert job.status() == 1
    assert len(job.starts()) == 10
    assert job.read("requeued") == ""
    assert "no server stays: see out.jsonl.slurm/7.0/server-*.log" in job.read("log")
    assert "ended by itself, 5 of 5 times" in job.read("out.jsonl.slurm/7.0/server-0.log")


def test_a_server_that_ends_by_itself_is_started_again_at_its_port(batch):
    job = batch("run.sbatch", fails="once", PORT_BASE="18600").running(servers=3).end("run", 0)
    assert job.status() == 0
    assert set(job.starts()) == {"18600 a model", "18601 a model"}


def test_servers_that_are_told_to_end_are_no_failure(batch):
    """As in a preemption's grace time: Slurm tells the steps, and not the batch shell."""
    job = batch("run.sbatch").running()
    for task in job.read("srun.tasks").split():
        os.kill(int(task), signal.SIGTERM)
    assert job.status() == 3
    assert job.read("requeued") == "requeue 7\n"


@pytest.mark.parametrize("command", ["DEVICE=0 server", "true && server", "exec server"])
def test_a_server_may_be_any_command_of_a_shell_and_is_told_to_end(batch, command):
    job = batch("run.sbatch", SERVER_COMMAND=command).running().end("run", 0)
    assert job.status() == 0
    job.until(lambda: job.read("server.ended").count("x") == 2)


def test_a_port_that_is_taken_is_left_to_whom_it_belongs(batch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        job = batch("run.sbatch", PORT_BASE=str(port)).running().end("run", 0)
        assert job.status() == 0
    assert f"{port + 1000} a model" in job.starts()
    assert f":{port + 1000}\n" in job.read("out.jsonl.slurm/7.0/servers.txt")


def test_jobs_have_ports_of_their_own_and_a_server_has_the_job_s_cores(batch):
    job = batch("run.sbatch", SLURM_JOB_ID="1234567", SLURM_CPUS_PER_TASK="16").running().end("run", 0)
    assert job.status() == 0
    assert set(job.starts()) == {"21700 a model", "21701 a model"}
    assert job.read("srun.cpus") == "16\n"


REGISTERING = {"DISPATCHER_URL": "http://head:8080", "DISPATCHER_REGISTRATION_TOKEN": "reg-1"}


def test_a_server_that_is_to_end_leaves_the_list_first(batch):
    task = batch("servers.sbatch", SLURM_ARRAY_JOB_ID="3", SLURM_ARRAY_TASK_ID="4", **REGISTERING)
    task.running("register", servers=1).term()
    assert task.status() == 0
    assert task.starts() == ["15304 a model"]
    assert ":15304 --health http://127.0.0.1:15304" in task.read("dispatcher.called")


BUSY_TWICE = """
echo >> looks; case $(wc -l < looks) in 1 | 2) open=1.0;; *) open=0.0;; esac
echo "vllm:num_requests_running{engine=\\"0\\"} $open"
echo "vllm:num_requests_waiting{engine=\\"0\\"} 0.0"
echo "vllm:num_requests_waiting_by_reason{engine=\\"0\\"} 5.0"
"""


def test_a_server_waits_for_what_it_has_in_hand(batch):
    task = batch("servers.sbatch", curl=BUSY_TWICE, **REGISTERING).running("register", servers=1).term()
    assert task.status() == 0
    assert len(task.read("looks").splitlines()) == 3


def test_a_registration_that_is_refused_ends_the_server(batch):
    task = batch("servers.sbatch", **REGISTERING).running("register", servers=1).end("register", 2)
    assert task.status() == 2


def test_a_registered_server_that_ends_by_itself_is_started_again_and_given_up_in_the_end(batch):
    task = batch("servers.sbatch", fails="always", **REGISTERING)
    assert task.status() == 1
    assert len(task.starts()) == 5


SERVING = {"CONFIG": "dispatcher.yaml", "SERVERS": "99"}


def test_a_service_fetches_its_job_and_cancels_the_servers(batch):
    job = batch("serve.sbatch", **SERVING).running("watch", servers=0).end("watch", 0).end("fetch", 1)
    assert job.status() == 1
    called = "submit in.jsonl --window 7d\nwatch batch_1\nfetch batch_1 -o out.jsonl\n"
    assert job.read("dispatcher.called").endswith(called)
    assert job.read("cancelled") == "99\n"


@pytest.mark.parametrize(("state", "requeued"), [("RUNNING", "requeue 7\n"), ("COMPLETING", "")])
def test_a_service_that_is_to_stop_goes_back_into_the_queue_unless_it_is_cancelled(batch, state, requeued):
    job = batch("serve.sbatch", JOB_STATE=state, **SERVING).running("watch", servers=0).term()
    assert job.status() == 3
    assert (job.read("requeued"), job.read("cancelled")) == (requeued, "")
    assert job.read("out.jsonl.job") == "batch_1\n"


def test_a_service_that_does_not_start_submits_nothing(batch):
    job = batch("serve.sbatch", curl="exit 7", **SERVING).end("serve", 2)
    assert job.status() == 2
    assert "the service did not start" in job.read("log")
    assert "submit" not in job.read("dispatcher.called")


def test_a_service_that_ends_by_itself_goes_back_into_the_queue_and_keeps_its_servers(batch):
    job = batch("serve.sbatch", **SERVING).running("watch", servers=0).end("serve", 137)
    assert job.status() == 3
    assert (job.read("requeued"), job.read("cancelled")) == ("requeue 7\n", "")
    assert "the service has ended by itself" in job.read("log")


def test_a_service_that_ends_by_itself_again_and_again_is_given_up(batch):
    job = batch("serve.sbatch", SLURM_RESTART_COUNT="5", **SERVING).running("watch", servers=0)
    assert job.end("watch", 2).end("fetch", 2).end("serve", 137).status() == 2
    assert (job.read("requeued"), job.read("cancelled")) == ("", "99\n")

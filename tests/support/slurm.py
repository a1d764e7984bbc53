"""A real Slurm of the tests' own on this machine: two nodes, private configuration, ports and keys."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

STARTS_S = 30.0
MISSING = "slurmctld, slurmd, sbatch and munged are needed, as root"
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock
CredType=cred/munge
StateSaveLocation={folder}/ctld
SlurmdSpoolDir={folder}/slurmd.%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PropagateResourceLimits=NONE
ReturnToService=2
CommunicationParameters=NoAddrCache
SchedulerParameters=requeue_delay=1
MinJobAge=300
KillWait=5
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2 State=UNKNOWN
PartitionName=debug Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def missing():
    """What keeps a Slurm from being started here; None where nothing does."""
    tools = ("slurmctld", "slurmd", "sbatch", "munged", "runuser")
    return None if os.geteuid() == 0 and all(map(shutil.which, tools)) else MISSING


@dataclass(frozen=True)
class Slurm:
    """A running one."""

    folder: Path

    def call(self, *command, check=True, **environment):
        """What the command printed, stripped."""
        done = subprocess.run(
            list(map(str, command)),
            env={**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), **environment},
            cwd=self.folder / "jobs",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert not check or done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(self, script, *options, **environment):
        """Submit a script, and return the job's number."""
        return self.call("sbatch", "--parsable", *options, script, **environment)

    def field(self, job, name):
        """One field of `scontrol show job`: the first of that name."""
        shown = self.call("scontrol", "show", "job", job).split()
        return next(word.partition("=")[2] for word in shown if word.startswith(f"{name}="))

    def until(self, condition, timeout_s=90.0):
        """Poll until the condition holds, and return what it gave."""
        until = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < until, f"not within {timeout_s:g} s\n{self.story()}"
            time.sleep(0.25)
        return found

    def ended(self, job, timeout_s=120.0):
        """Wait for its end: its state then."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        return self.until(lambda: (state := self.field(job, "JobState")) in over and state, timeout_s)

    def story(self):
        """What the jobs have logged."""
        logs = sorted((self.folder / "jobs").rglob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs)


@contextlib.contextmanager
def running_slurm():
    """Two nodes that are idle, until the context is left."""
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)  # the user munge is to come in
        with _running_slurm(folder) as slurm:
            yield slurm


@contextlib.contextmanager
def _running_slurm(folder):
    for name in ("ctld", "munge", "jobs", "slurmd.n1", "slurmd.n2"):
        (folder / name).mkdir(parents=True)
    ports = dict(zip(("port", "first", "second"), _free_ports(3), strict=True))
    host = socket.gethostname().split(".")[0]
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, host=host, **ports))
    slurm = Slurm(folder)
    with contextlib.ExitStack() as stack:
        _start_munge(stack, folder / "munge")
        _start(stack, folder, "slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            _start(stack, folder, "slurmd", "-D", "-c", "-N", node)
        slurm.until(
            lambda: slurm.call("sinfo", "-h", "-N", "-o", "%t", check=False).split() == ["idle"] * 2, STARTS_S
        )
        yield slurm
        slurm.call("scancel", "--state=PENDING", check=False)
        slurm.call("scancel", "--full", "--signal=KILL", "--user=root", check=False)


def _start_munge(stack, folder):
    (folder / "key").write_bytes(secrets.token_bytes(128))
    (folder / "key").chmod(0o600)
    for path in (folder, folder / "key"):
        shutil.chown(path, "munge", "munge")
    options = [f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")]
    _start(
        stack,
        folder,
        "runuser",
        "-u",
        "munge",
        "--",
        "munged",
        "--foreground",
        f"--socket={folder}/sock",
        *options,
    )
    until = time.monotonic() + STARTS_S
    while not (folder / "sock").exists():
        assert time.monotonic() < until, "munged has not started"
        time.sleep(0.1)


def _start(stack, folder, *command):
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    with (folder / f"{command[0]}.out").open("ab") as log:
        process = subprocess.Popen(list(map(str, command)), env=environment, stdout=log, stderr=log)
    stack.callback(_end, process)


def _end(process):
    process.terminate()
    try:
        process.wait(STARTS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports

"""A Docker engine of the tests' own: private socket, data folder and network namespace; and the image in it.

Where `python:3.12-slim` cannot be pulled, a stand-in is made: Debian's minimal system and this machine's
CPython, built once a machine.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASE = "python:3.12-slim"
IMAGE = "dispatcher:test"
TABLES_IMAGE = "dispatcher-tables:test"
"""With pyarrow, for `annotate`."""
STARTS_S = 30.0
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
OF_BASE = (
    "ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin LANG=C.UTF-8 "
    f"PIP_CERT={CERTIFICATES} SSL_CERT_FILE={CERTIFICATES}"
)
PACKAGES = (
    "libssl3,libffi8,libsqlite3-0,zlib1g,libbz2-1.0,liblzma5,libreadline8,libncursesw6,libuuid1,libgdbm6,"
    "ca-certificates,netbase,tzdata"
)
HOOK = """#!/bin/sh
set -e
mkdir -p "$1/usr/local"
cp -a "$PYTHON_PREFIX/bin" "$PYTHON_PREFIX/lib" "$PYTHON_PREFIX/include" "$1/usr/local/"
rm -rf "$1"/usr/local/lib/python3*/test "$1"/usr/local/lib/python3*/site-packages/* "$1"/usr/local/bin/pip*
find "$1/usr/local" -name __pycache__ -prune -exec rm -rf {} +
rm -rf "$1"/usr/local/lib/libpython*.a "$1"/usr/local/lib/python3*/config-*
chroot "$1" /sbin/ldconfig
chroot "$1" /usr/local/bin/python3 -m ensurepip --default-pip >/dev/null 2>&1
ln -sf python3 "$1/usr/local/bin/python"
"""
MISSING = "docker, dockerd, mmdebstrap and ip are needed, as root"


def missing():
    """What keeps an engine from being started here; None where nothing does."""
    tools = ("docker", "dockerd", "mmdebstrap", "ip", "nsenter")
    return None if os.geteuid() == 0 and all(map(shutil.which, tools)) else MISSING


@dataclass(frozen=True)
class Engine:
    """A running engine."""

    folder: Path
    namespace: str | None = None
    """Its network namespace; None: it has the machine's own network, and no bridges."""

    @property
    def environment(self):
        plugins = {"DOCKER_BUILDKIT": "1", "DOCKER_CONFIG": str(self.folder / "client")}
        return {**os.environ, **plugins, "DOCKER_HOST": f"unix://{self.folder}/docker.sock"}

    def docker(self, *arguments, check=True, timeout_s=120.0, **options):
        """`docker ARGUMENTS`: what it printed, stripped; with `check=False`, how it ended."""
        done = subprocess.run(
            [_client(), *map(str, arguments)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            **options,
        )
        if not check:
            return done
        assert done.returncode == 0, f"docker {' '.join(map(str, arguments))}:\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def python(self, name, code):
        """What some Python prints inside a container."""
        return self.docker("exec", name, "python", "-c", code)

    def until(self, condition, timeout_s=60.0):
        """Poll until the condition holds, and return what it gave."""
        until = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < until, f"not within {timeout_s:g} s: {condition}"
            time.sleep(0.25)
        return found

    def logs(self, name):
        done = self.docker("logs", name, check=False)
        return done.stdout + done.stderr


@contextlib.contextmanager
def engine_with_image(folder):
    """An engine in a network namespace of its own, which has built the project's image."""
    folder.mkdir(parents=True, exist_ok=True)
    with _running(folder, None) as builder:  # the machine's own network: the build needs the registries
        _provide_base(builder)
        _build(builder)
    namespace = f"dispatcher{os.getpid()}"
    subprocess.run(["ip", "netns", "add", namespace], check=True)
    try:
        subprocess.run(["ip", "-n", namespace, "link", "set", "lo", "up"], check=True)
        with _running(folder, namespace) as engine:
            yield engine
    finally:
        subprocess.run(["ip", "netns", "del", namespace], check=False)


@contextlib.contextmanager
def _running(folder, namespace):
    engine = Engine(folder, namespace)
    places = [
        "-H",
        f"unix://{folder}/docker.sock",
        "--data-root",
        folder / "data",
        "--exec-root",
        folder / "run",
    ]
    options = [*places, "--pidfile", folder / "pid", "--exec-opt", "native.cgroupdriver=cgroupfs"]
    if namespace is None:
        closed = ("iptables", "ip6tables", "ip-forward", "ip-masq")
        command = ["dockerd", *options, "--bridge=none", *(f"--{name}=false" for name in closed)]
    else:
        networks = ["--bip", "172.30.0.1/24", "--default-address-pool", "base=172.31.0.0/16,size=24"]
        command = ["nsenter", f"--net=/run/netns/{namespace}", "dockerd", *options, *networks]
    with (folder / "dockerd.log").open("ab") as log:
        process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
        try:
            engine.until(lambda: engine.docker("info", check=False).returncode == 0, STARTS_S)
            yield engine
        finally:
            _remove_all(engine)
            process.terminate()
            process.wait(STARTS_S)


def _remove_all(engine):
    if names := engine.docker("ps", "--all", "--quiet", check=False).stdout.split():
        engine.docker("rm", "--force", "--volumes", *names, check=False)
    engine.docker("volume", "prune", "--force", "--all", check=False)
    engine.docker("volume", "prune", "--force", check=False)  # engines before 23 have no --all, and need none
    engine.docker("network", "prune", "--force", check=False)


def _client():
    """Debian's own client builds with BuildKit; another on the PATH may lack the plugin for it."""
    return "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"


def _build(engine):
    build = ["build", "--network", "host", "--build-arg", "REVISION=test", ROOT]
    engine.docker(*build, "--tag", IMAGE, timeout_s=600)
    engine.docker(*build, "--tag", TABLES_IMAGE, "--build-arg", "LOCK=requirements-tables.txt", timeout_s=600)


def _provide_base(engine):
    if engine.docker("image", "inspect", BASE, check=False).returncode == 0:
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        if engine.docker("pull", "--quiet", BASE, check=False, timeout_s=60).returncode == 0:
            return
    engine.docker("import", "-c", OF_BASE, "-c", 'CMD ["python3"]', _stand_in(engine.folder), "base:raw")
    context = engine.folder / "base"
    context.mkdir(exist_ok=True)
    shutil.copy(CERTIFICATES, context)  # pip's, in the build: whoever speaks for the registries here is in it
    (context / "Dockerfile").write_text(f"FROM base:raw\nCOPY ca-certificates.crt {CERTIFICATES}\n")
    engine.docker("build", "--quiet", "--tag", BASE, context)


def _stand_in(folder):
    """The file system of a base image, as a tar."""
    target, hook = folder / "base.tar", folder / "hook.sh"
    if target.exists():
        return target
    hook.write_text(HOOK)
    hook.chmod(0o755)
    command = [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={PACKAGES}",
        f"--customize-hook={hook}",
    ]
    suite = _release()
    sources = Path("/etc/apt/sources.list.d").glob("debian.sources")
    half = folder / "base.tar.partial"
    subprocess.run(
        [*command, "--format=tar", suite, half, *sources],
        env={**os.environ, "PYTHON_PREFIX": str(_python_3_12())},
        check=True,
        timeout=300,
    )
    half.rename(target)
    return target


def _release():
    fields = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line
    )
    return fields["VERSION_CODENAME"].strip('"')


def _python_3_12():
    candidates = [*Path.home().glob(".pyenv/versions/3.12*"), Path("/usr/local")]
    for prefix in candidates:
        if (prefix / "bin" / "python3.12").exists():
            return prefix
    raise AssertionError(f"no Python 3.12 beside {sys.prefix} to make a base image of")

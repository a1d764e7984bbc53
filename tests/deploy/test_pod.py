"""The Deployment, run by podman: as nobody, read-only, with a service account and an emulated API server."""

import asyncio
import hashlib
import json
import os
import ssl
import sys
from contextlib import asynccontextmanager

import aiohttp
import podman as podmans
import pytest
import yaml
from endpoint_slices import endpoint, written_slice
from engine import IMAGE
from gateway import certificate
from jobs import CHAT, lines, rows
from kubernetes_server import TOKEN, KubernetesServer
from manifests import KUBERNETES, chart, kustomized, required

from dispatcher.discovery.kubernetes_api import ACCOUNT
from dispatcher.testing.server import FakeServer

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]
KEY = "a-key-of-the-test"
ROWS = 200
WITHIN_S = 240.0
CONTAINER = "dispatcher-pod-0-dispatcher"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("podman")
    yield folder
    podmans.forget(folder)


@pytest.fixture
async def podman(engine, folder):
    required(podmans.missing() or "podman", podmans.missing() is None)
    podman = podmans.Podman(folder)
    image = folder / "image.tar"
    if not image.exists():
        engine.docker("save", IMAGE, "--output", image, timeout_s=300)
        await podman("load", "--quiet", "--input", image, timeout_s=300)
    yield podman
    names = (await podman("ps", "--all", "--format", "{{.Names}}")).split()
    for name in names:  # shown where the test fails
        sys.stdout.write(await podman("logs", name, check=False))
    await podman.remove_all()


@asynccontextmanager
async def cluster_of(directory):
    """An API server, and what a pod has of it."""
    cert, key = certificate(directory)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    account = directory / "account"
    account.mkdir()
    for name, text in (("token", TOKEN), ("namespace", "gpu"), ("ca.crt", cert.read_text())):
        (account / name).write_text(text)
        (account / name).chmod(0o644)
    account.chmod(0o755)
    async with KubernetesServer(context=context) as server:
        yield server, account


def adapted(port, cluster, account):
    """The overlay `single`, with what podman lacks: an account. The probes are asked by the test."""
    found = {each["kind"]: each for each in kustomized(KUBERNETES / "overlays" / "single")}
    config, deployment = found["ConfigMap"], found["Deployment"]
    settings = yaml.safe_load(config["data"]["dispatcher.yaml"])
    settings["api"]["port"] = port
    config["data"]["dispatcher.yaml"] = yaml.safe_dump(settings)
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    container["image"] = f"localhost/{IMAGE}"
    probing = [name for name in container if name.endswith("Probe")]
    probes = {name: container.pop(name)["httpGet"]["path"] for name in probing}
    _as_in_a_cluster(spec, cluster, account)
    return [config, found["PersistentVolumeClaim"], deployment], probes


def job_of_the_chart(port, cluster, account, data):
    """A job as a pod, since podman knows no jobs, with a directory in place of the volume."""
    config = {"run": {"output": "/data/out.jsonl"}, "telemetry": {"metrics_port": port}}
    image = {"repository": "localhost/dispatcher", "tag": "test"}
    work = {"enabled": True, "command": "run", "input": "/data/in.jsonl", "image": image, "config": config}
    found = {each["kind"]: each for each in chart({"service": {"enabled": False}, "job": work})}
    spec = found["Job"]["spec"]["template"]["spec"]
    for volume in spec["volumes"]:
        if volume["name"] == "data":
            del volume["persistentVolumeClaim"]
            volume["hostPath"] = {"path": str(data), "type": "Directory"}
    _as_in_a_cluster(spec, cluster, account)
    return [
        found["ConfigMap"],
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "job"}, "spec": spec},
    ]


def _as_in_a_cluster(spec, cluster, account):
    spec["hostNetwork"] = True
    (container,) = spec["containers"]
    container["imagePullPolicy"] = "Never"
    container["ports"] = []
    container["env"] = [each for each in container["env"] if each["name"] != "DISPATCHER_API_KEY"]
    where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(cluster.port)}
    container["env"] += [{"name": name, "value": value} for name, value in where.items()]
    container["volumeMounts"].append({"name": "account", "mountPath": str(ACCOUNT), "readOnly": True})
    spec["volumes"].append({"name": "account", "hostPath": {"path": str(account), "type": "Directory"}})


def slice_at(server, name):
    ports = ({"name": "http", "port": server.port, "protocol": "TCP"},)
    return written_slice(name, endpoint("127.0.0.1", name, ready=False), ports=ports)


async def until(condition):
    async with asyncio.timeout(WITHIN_S):
        while not (found := await condition()):  # noqa: ASYNC110  # it is polled
            await asyncio.sleep(0.2)
    return found


async def answered(http, path):
    """The status; None while nobody listens."""
    try:
        async with http.get(path) as response:
            return response.status
    except aiohttp.ClientError:
        return None


async def submit(http):
    """A job; its id."""
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", lines(rows(ROWS)).encode(), filename="in.jsonl")
    async with http.post("/v1/files", data=form) as response:
        file = await response.json()
    made = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    async with http.post("/v1/batches", json=made) as response:
        return (await response.json())["id"]


async def job(http, batch):
    async with http.get(f"/jobs/{batch}") as response:
        return await response.json()


async def test_the_deployment_finds_servers_runs_a_job_and_stops_in_order(
    podman, serve, tmp_path, unused_tcp_port
):
    first = await serve(answer_tokens=4)
    url, auth = f"http://127.0.0.1:{unused_tcp_port}", {"Authorization": f"Bearer {KEY}"}
    async with cluster_of(tmp_path) as (cluster, account), aiohttp.ClientSession(url, headers=auth) as http:
        cluster.put(slice_at(first, "first"))
        objects, probes = adapted(unused_tcp_port, cluster, account)
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        keys = [{"name": "ann", "role": "admin", "hash": f"sha256:{digest}"}]
        await podman.keep_secret("dispatcher", **{"api-keys": json.dumps(keys)})
        await podman.play(objects)
        assert set(probes.values()) == {"/healthz", "/readyz"}
        for path in probes.values():
            await until(lambda path=path: _is_ok(http, path))
        batch = await submit(http)
        await _ends(http, batch)
        await _takes_a_server_that_is_added(http, cluster, first, await serve(answer_tokens=4))
        await _is_confined(podman)
        await _stops_in_order(podman)


async def test_a_job_of_the_chart_leaves_its_output_on_the_volume_and_ends(
    podman, serve, tmp_path, unused_tcp_port
):
    server, data = await serve(answer_tokens=4), tmp_path / "data"
    data.mkdir()
    os.chown(data, 10001, 10001)
    (data / "in.jsonl").write_text(lines(rows(ROWS)))
    async with cluster_of(tmp_path) as (cluster, account):
        cluster.put(slice_at(server, "first"))
        await podman.play(job_of_the_chart(unused_tcp_port, cluster, account, data))
        status = await podman("wait", "job-dispatcher", timeout_s=WITHIN_S)
    told = await podman("logs", "job-dispatcher")
    assert status == "0", told
    assert len((data / "out.jsonl").read_text().splitlines()) == ROWS
    assert sorted(path.name for path in data.iterdir()) == ["in.jsonl", "out.jsonl"]


async def _is_ok(http, path):
    return await answered(http, path) == 200


async def _ends(http, batch):
    async def ended():
        found = await job(http, batch)
        return found if found["ended_at"] else None

    found = await until(ended)
    assert (found["status"], found["counts"]["succeeded"]) == ("completed", ROWS)


async def _takes_a_server_that_is_added(http, cluster, first: FakeServer, second: FakeServer):
    cluster.put(slice_at(second, "second"))

    async def listed():
        async with http.get("/servers") as response:
            found = {each["url"]: each["state"] for each in (await response.json())["data"]}
        return found == {first.url: "active", second.url: "active"}

    await until(listed)
    cluster.remove("first")

    async def left():
        async with http.get("/servers") as response:
            return [each["url"] for each in (await response.json())["data"]] == [second.url]

    await until(left)


async def _is_confined(podman):
    assert await podman("exec", CONTAINER, "id", "-u") == "10001"
    read_only = "import os; print(bool(os.statvfs('/').f_flag & os.ST_RDONLY))"
    assert await podman("exec", CONTAINER, "python", "-c", read_only) == "True"
    status = await podman("exec", CONTAINER, "cat", "/proc/1/status")
    assert "CapEff:\t0000000000000000" in status


async def _stops_in_order(podman):
    await podman("stop", "--time", "60", CONTAINER)
    state = json.loads(await podman("inspect", CONTAINER))[0]["State"]
    assert state["ExitCode"] == 0
    events = [json.loads(line)["event"] for line in (await podman("logs", CONTAINER)).splitlines()]
    assert {"kubernetes_changed", "serving", "stopping", "stopped"} <= set(events)

"""The Deployment, run by podman: as nobody, read-only, with a service account and an emulated API server."""

import asyncio
import hashlib
import json
import ssl
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
from manifests import KUBERNETES, kustomized, required

from dispatcher.discovery.kubernetes_api import ACCOUNT
from dispatcher.testing.server import FakeServer

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]
KEY = "a-key-of-the-test"
ROWS = 200
WITHIN_S = 90.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("podman")


@pytest.fixture
async def podman(engine, folder):
    required(podmans.missing() or "podman", podmans.missing() is None)
    podman = podmans.Podman(folder)
    image = folder / "image.tar"
    if not image.exists():
        engine.docker("save", IMAGE, "--output", image, timeout_s=300)
        await podman("load", "--quiet", "--input", image, timeout_s=300)
    yield podman
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
    spec["hostNetwork"] = True
    (container,) = spec["containers"]
    probes = {
        name: container.pop(name)["httpGet"]["path"] for name in list(container) if name.endswith("Probe")
    }
    container["image"] = f"localhost/{IMAGE}"
    container["imagePullPolicy"] = "Never"
    container["ports"] = []
    container["env"] = [each for each in container["env"] if each["name"] != "DISPATCHER_API_KEY"]
    where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(cluster.port)}
    container["env"] += [{"name": name, "value": value} for name, value in where.items()]
    container["volumeMounts"].append({"name": "account", "mountPath": str(ACCOUNT), "readOnly": True})
    spec["volumes"].append({"name": "account", "hostPath": {"path": str(account), "type": "Directory"}})
    return [config, found["PersistentVolumeClaim"], deployment], probes


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
    container = f"dispatcher{podmans.POD_SUFFIX}-dispatcher"
    assert await podman("exec", container, "id", "-u") == "10001"
    read_only = "import os; print(bool(os.statvfs('/').f_flag & os.ST_RDONLY))"
    assert await podman("exec", container, "python", "-c", read_only) == "True"
    status = await podman("exec", container, "cat", "/proc/1/status")
    assert "CapEff:\t0000000000000000" in status


async def _stops_in_order(podman):
    container = f"dispatcher{podmans.POD_SUFFIX}-dispatcher"
    await podman("stop", "--time", "60", container)
    logs = await podman("logs", container, check=False)
    ended = json.loads(await podman("inspect", container))[0]["State"]["ExitCode"]
    assert ended == 0, logs

"""What the overlays `several` and `job` say, run: commands, settings and environment, without a cluster."""

import asyncio
import hashlib
import json
import re
import signal
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pyarrow as pa
import pytest
from commands import Commands, until
from endpoint_slices import endpoint, written_slice
from jobs import CHAT, lines, rows, sends
from kubernetes_server import KubernetesServer, kubeconfig
from manifests import KUBERNETES, kustomized
from pods import container_of
from tables import Annotation, texts

from dispatcher.testing.engine import EngineSettings

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]
KEY = "a-key-of-the-test"
KEYS = [{"name": "ann", "role": "admin", "hash": f"sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"}]
SERVER_KEY = "a-key-of-the-servers"
SLOW = EngineSettings(max_sequences=8, decode_step_s=0.02)
ROWS = 800
LEASES = {"DISPATCHER_QUEUE__LEASE_S": "5", "DISPATCHER_QUEUE__SHARD_SIZE": "16"}
"""The only settings that are the test's: a minute is long to wait for what a dead pod held."""
SETTINGS = "/etc/dispatcher/dispatcher.yaml"
WITHIN_S = 90.0
"""A command's start, or its end: on a busy machine, too."""


@pytest.fixture
async def cluster(serve, tmp_path):
    """An API server with two vLLM pods that ask for a key, and the way to it from outside."""
    servers = [await serve(engine=SLOW, answer_tokens=4, api_key=SERVER_KEY) for _ in range(2)]
    async with KubernetesServer() as api:
        for number, server in enumerate(servers):
            ports = ({"name": "http", "port": server.port, "protocol": "TCP"},)
            api.put(written_slice(f"s{number}", endpoint("127.0.0.1", f"pod-{number}"), ports=ports))
        yield servers, kubeconfig(tmp_path, api)


@asynccontextmanager
async def started(container, **env):
    async with Commands(container.directory, env=container.environment | env) as commands:
        yield await commands.start(*container.argv)


def on_loopback(path):
    """No process here has a pod's address, nor its service account."""

    def change(settings):
        settings["discovery"]["kubernetes"]["kubeconfig"] = str(path)
        if "api" in settings:
            settings["api"] |= {"host": "127.0.0.1", "port": 0}
        settings["telemetry"].pop("metrics_port", None)

    return change


@pytest.fixture
def several(postgres, s3, cluster, tmp_path):
    """Containers of the overlay by the names of their objects, each with directories of its own."""
    objects = kustomized(KUBERNETES / "overlays" / "several")
    for role in ("owner", "dispatcher"):
        postgres.role(role)
    database = postgres.fresh_database().rsplit("/", 1)[1]
    postgres.sql(f"ALTER DATABASE {database} OWNER TO owner")
    _empty_bucket(s3.client)
    secrets = {
        "dispatcher": {
            "api-keys": json.dumps(KEYS),
            "server-api-key": SERVER_KEY,
            "queue-url": postgres.url_of(database, "dispatcher"),
            "queue-owner-url": postgres.url_of(database, "owner"),
        },
        "dispatcher-storage": s3.environment(),
    }

    def container(name, pod):
        made = container_of(objects, name, secrets, tmp_path / pod)
        if name == "dispatcher":
            made.change(SETTINGS, on_loopback(cluster[1]))
        return made

    return container


def _empty_bucket(client, name="bucket"):
    """The one that the overlay names."""
    client.create_bucket(Bucket=name)
    for found in client.list_objects_v2(Bucket=name).get("Contents", ()):
        client.delete_object(Bucket=name, Key=found["Key"])


async def serving(command):
    """Where a service listens, once it does."""
    port = re.compile(r'"port": ?(\d+)')
    found = await until(lambda: port.search(command.err) or not command.running, WITHIN_S)
    assert command.running, command.err
    return f"http://127.0.0.1:{found[1]}"


async def submit(http, url):
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", lines(rows(ROWS)).encode(), filename="in.jsonl")
    async with http.post(f"{url}/v1/files", data=form) as response:
        file = await response.json()
    made = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    async with http.post(f"{url}/v1/batches", json=made) as response:
        return (await response.json())["id"]


async def asked_until(http, url, batch, condition):
    async with asyncio.timeout(WITHIN_S):
        while True:
            async with http.get(f"{url}/v1/batches/{batch}") as response:
                found = await response.json()
            if condition(found):
                return found
            await asyncio.sleep(0.1)


async def test_pods_of_several_start_once_the_tables_are_there(several):
    async with started(several("dispatcher", "early")) as early:
        done = await early.wait(WITHIN_S)
    assert (done.status, done.err.count("dispatcher migrate")) == (2, 1), done.err
    for pod in ("first", "again"):
        async with started(several("dispatcher-migrate", pod)) as migration:
            done = await migration.wait(WITHIN_S)
        assert done.status == 0, done.err
    async with started(several("dispatcher", "late")) as late:
        await serving(late)


async def test_pods_of_several_share_a_job_and_one_that_is_killed_costs_what_was_in_flight(several, cluster):
    servers, _ = cluster
    async with started(several("dispatcher-migrate", "migrate")) as migration:
        assert (await migration.wait(WITHIN_S)).status == 0
    async with AsyncExitStack() as stack:
        pods = [
            await stack.enter_async_context(started(several("dispatcher", name), **LEASES))
            for name in ("a", "b")
        ]
        urls = [await serving(pod) for pod in pods]
        auth = {"Authorization": f"Bearer {KEY}"}
        http = await stack.enter_async_context(aiohttp.ClientSession(headers=auth))
        batch = await submit(http, urls[0])
        await asked_until(http, urls[1], batch, lambda found: found["request_counts"]["completed"] > 50)
        await pods[0].kill()
        in_flight = sum(server.in_flight for server in servers)
        ended = await asked_until(http, urls[1], batch, lambda found: found["status"] == "completed")
        async with http.get(f"{urls[1]}/v1/files/{ended['output_file_id']}/content") as response:
            output = [json.loads(line) for line in (await response.text()).splitlines()]
        pods[1].send(signal.SIGTERM)
        assert (await pods[1].wait(WITHIN_S)).status == 0
    assert [line["custom_id"] for line in output] == [f"row-{number:05}" for number in range(ROWS)]
    again = sum(count - 1 for count in Counter(sends(*servers)).values())
    print(f"{in_flight} requests in flight after the kill, {again} rows sent again")  # noqa: T201
    assert 0 < again < ROWS // 4


async def test_the_job_goes_on_where_it_was_stopped_and_leaves_its_table_on_the_volume(cluster, tmp_path):
    servers, path = cluster
    objects = kustomized(KUBERNETES / "overlays" / "job")
    secrets = {"dispatcher": {"server-api-key": SERVER_KEY}}
    container = container_of(objects, "dispatcher-job", secrets, tmp_path / "pod")
    container.change(SETTINGS, on_loopback(path))
    volume = Annotation(container.directory)
    reviews = texts(ROWS)
    volume.file("reviews.parquet", pa.Table.from_pylist(reviews))
    async with started(container) as first:
        await until(lambda: len(sends(*servers)) > 50, WITHIN_S)
        first.send(signal.SIGTERM)
        assert _policy(objects, (await first.wait(WITHIN_S)).status) == "Ignore"
    async with started(container) as second:
        done = await second.wait(WITHIN_S)
    assert (done.status, _policy(objects, 0)) == (0, None), done.err
    table = volume.table("labelled.parquet").to_pylist()
    assert [each["text"] for each in table] == [each["text"] for each in reviews]
    assert {each["answer"] for each in table} <= {"positive", "negative"}
    assert sorted(Counter(sends(*servers)).values()) == [1] * ROWS
    async with started(container) as third:  # a node may be lost before it can tell that its pod has ended
        assert (await third.wait(WITHIN_S)).status == 0
    assert len(sends(*servers)) == ROWS
    (volume.directory / "labelled.parquet").unlink()
    (volume.directory / "reviews.parquet").unlink()
    async with started(container) as fourth:
        assert _policy(objects, (await fourth.wait(WITHIN_S)).status) == "FailJob"


def _policy(objects, status):
    """What a container's exit status does to the Job; None: it counts as it is."""
    (spec,) = (each["spec"] for each in objects if each["kind"] == "Job")
    for rule in spec["podFailurePolicy"]["rules"]:
        if status in rule.get("onExitCodes", {}).get("values", ()):
            return rule["action"]
    return None

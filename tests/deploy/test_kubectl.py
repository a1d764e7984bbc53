"""The API server's emulation is what the tests of discovery stand on: the real kubectl takes it for one."""

import asyncio
import json
import ssl
from contextlib import asynccontextmanager

import pytest
import yaml
from endpoint_slices import endpoint, written_slice
from gateway import certificate
from kubernetes_server import TOKEN, KubernetesServer
from manifests import kubectl

pytestmark = pytest.mark.services
LABELLED = ("--selector", "kubernetes.io/service-name=vllm", "--output", "json")


@pytest.fixture
async def cluster(tmp_path):
    """With TLS: kubectl shows no token without."""
    cert, key = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    async with KubernetesServer(context=context) as server:
        yield server


@asynccontextmanager
async def asked(cluster, directory, *arguments):
    """`kubectl get endpointslices ARGUMENTS`, while it runs."""
    path = directory / "kubeconfig"
    content = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": cluster.url, "certificate-authority": "cert.pem"}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "gpu"}}],
    }
    path.write_text(yaml.safe_dump(content))
    places = ("--kubeconfig", path, "--cache-dir", directory / "cache")
    process = await asyncio.create_subprocess_exec(
        *map(str, (kubectl(), *places, "get", "endpointslices", *arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def slice_with(*pods):
    return written_slice("a", *(endpoint(f"10.0.0.{pod}", f"uid-{pod}") for pod in pods))


async def test_kubectl_lists_in_pages(cluster, tmp_path):
    cluster.put(*(written_slice(f"s{number}", endpoint(f"10.0.0.{number}")) for number in range(1, 6)))
    cluster.put(written_slice("other", service="other"))
    async with asked(cluster, tmp_path, *LABELLED, "--chunk-size", "2") as process:
        out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, err.decode()
    assert [each["metadata"]["name"] for each in json.loads(out)["items"]] == [f"s{n}" for n in range(1, 6)]
    assert len(cluster.lists) == 3


async def test_kubectl_watches_what_comes_changes_and_leaves(cluster, tmp_path):
    cluster.put(slice_with(1))
    arguments = ("--watch", "--output-watch-events", *LABELLED)
    async with asked(cluster, tmp_path, *arguments) as process, asyncio.timeout(30):
        seen = [await _event(process)]
        while not cluster.watches:  # noqa: ASYNC110  # it is polled
            await asyncio.sleep(0.01)
        cluster.put(slice_with(1, 2))
        seen.append(await _event(process))
        cluster.put(written_slice("a", service="other"))
        seen.append(await _event(process))
    assert seen == [("ADDED", 1), ("MODIFIED", 2), ("DELETED", 2)]


async def test_kubectl_is_told_why_it_may_not(cluster, tmp_path):
    cluster.forbidden.add("list")
    async with asked(cluster, tmp_path) as process:
        _, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 1
    assert "Error from server (Forbidden): endpointslices.discovery.k8s.io is forbidden" in err.decode()


async def _event(process):
    """The next one: its type, and how many endpoints there are."""
    text = ""
    while True:
        text += (await process.stdout.readline()).decode()
        try:
            event = json.loads(text)
        except ValueError:
            continue
        return event["type"], len(event["object"]["endpoints"] or ())

"""A pod's address that another Service's pod is given: no row is answered by what listens there then."""

from contextlib import AsyncExitStack

import yaml
from commands import until
from endpoint_slices import endpoint, written_slice
from jobs import MODEL, read, rows, sends
from kubernetes_server import KubernetesServer, kubeconfig

from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.server import FakeServer
from dispatcher.testing.settings import FakeServerSettings

SLOW = EngineSettings(max_sequences=8, decode_step_s=0.02)
ROWS = 300
IN_FLIGHT = 8


def configured(directory, api):
    """Settings by which the command finds the Service's pods."""
    path = directory / "dispatcher.yaml"
    discovery = {"kubernetes": {"service": "vllm", "kubeconfig": str(kubeconfig(directory, api))}}
    path.write_text(yaml.safe_dump({"discovery": discovery, "pool": {"limit": IN_FLIGHT}}))
    return path


def slice_at(port, pod):
    return written_slice("a", endpoint("127.0.0.1", pod), ports=({"name": "http", "port": port},))


async def test_an_address_that_a_pod_of_another_model_is_given_spoils_no_row(cli, job, serve, tmp_path):
    job.write(rows(ROWS))
    async with KubernetesServer() as api, AsyncExitStack() as pods:
        first = FakeServer(FakeServerSettings(engine=SLOW, answer_tokens=10), "127.0.0.1", 0)
        await pods.enter_async_context(first)
        port = first.port
        api.put(slice_at(port, "first"))
        options = ["--config", configured(tmp_path, api), "--log-format", "json"]
        command = await cli.start("run", job.input, "-o", job.output, *options)
        await until(lambda: len(sends(first)) > 40)
        await pods.aclose()
        stranger = await serve("127.0.0.1", port, models=("another",))
        api.put(slice_at(port, "stranger"))  # the Service's selector matches it by mistake
        await until(lambda: '"waiting_for_servers"' in command.err, 60)
        right = await serve(engine=SLOW, answer_tokens=10)
        api.put(slice_at(right.port, "right"))
        done = await command.wait(60)
    assert done.status == 0, done.err
    assert {line["response"]["body"]["model"] for line in read(job.output)} == {MODEL}
    assert len(job.ids) == ROWS
    assert len(sends(stranger)) <= IN_FLIGHT, "more than were on their way when the pods changed"

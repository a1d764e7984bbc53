"""Servers of Kubernetes Services: list and watch on the wire, and jobs while pods come and go."""

import asyncio
import json
import ssl
from contextlib import asynccontextmanager
from random import Random

import pytest
import yaml
from endpoint_slices import endpoint, written_slice
from gateway import certificate
from jobs import rows, sends
from kubernetes_server import TOKEN, KubernetesServer, kubeconfig
from prometheus_client import CollectorRegistry
from running import WITHIN_S, started
from structlog.testing import capture_logs

from dispatcher.app import sources
from dispatcher.app.clock import SystemClock
from dispatcher.app.fleet import open_fleet
from dispatcher.config import KubernetesEntry, load_config
from dispatcher.discovery import kubernetes_api
from dispatcher.discovery.kubernetes import EndpointSlices, KubernetesError
from dispatcher.discovery.kubernetes_api import KubernetesApi
from dispatcher.errors import ConfigError
from dispatcher.telemetry.metrics import Metrics
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.server import FakeServer

SELECTOR = "kubernetes.io/service-name=vllm"
RULE = "{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}"


@pytest.fixture(autouse=True)
def no_authorities(monkeypatch):
    """The system's, which take 50 ms to load for each session, and vouch for none of these servers."""
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: None)


@pytest.fixture
async def cluster():
    async with KubernetesServer() as server:
        yield server


class Following:
    """A source that is followed, in much less time than it takes in earnest."""

    def __init__(self, entry, environ=None, **options):
        self.api = KubernetesApi(KubernetesEntry.model_validate(entry), environ or {}, **options)
        entry = KubernetesEntry.model_validate(entry)
        self.source = EndpointSlices(entry, self.api, None, Random(0))
        self.lists = []
        self._clock = SystemClock()

    async def _follow(self):
        async for servers in self.source.watch(self._clock, interval_s=0.05):
            self.lists.append([server.id.removeprefix("http://") for server in servers])

    async def __aenter__(self):
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_):
        self._task.cancel()
        await asyncio.wait([self._task])

    async def until(self, holds):
        async with asyncio.timeout(WITHIN_S):
            while not holds():
                assert not self._task.done(), self._task.result()
                await asyncio.sleep(0.002)

    async def lists_up_to(self, *servers):
        await self.until(lambda: self.lists and self.lists[-1] == list(servers))


@pytest.fixture
def followed(cluster, tmp_path):
    path = str(kubeconfig(tmp_path, cluster))

    def follow(**entry):
        return Following({"service": "vllm", "kubeconfig": path} | entry)

    return follow


A, B, C = (f"10.0.0.{last}:8000" for last in (1, 2, 3))


def pod(last, **conditions):
    return endpoint(f"10.0.0.{last}", f"uid-{last}", **conditions)


async def test_endpoints_come_and_go_as_the_api_server_tells(cluster, followed):
    cluster.put(written_slice("a", pod(1)), written_slice("other", pod(9), service="other"))
    async with followed() as following:
        await following.lists_up_to(A)
        cluster.put(written_slice("a", pod(1), pod(2, ready=False)))
        await following.lists_up_to(A, B)
        cluster.put(written_slice("b", pod(3)))
        await following.lists_up_to(A, B, C)
        cluster.put(written_slice("a", pod(1, serving=True, terminating=True), pod(2)))
        await following.lists_up_to(B, C)
        cluster.remove("a")
        await following.lists_up_to(C)
    assert cluster.lists == [{"labelSelector": SELECTOR, "limit": "100"}]


async def test_a_slice_that_is_relabelled_leaves_and_one_that_gets_the_label_joins(cluster, followed):
    cluster.put(written_slice("a", pod(1)), written_slice("b", pod(2), service="test"))
    async with followed() as following:
        await following.lists_up_to(A)
        cluster.put(written_slice("b", pod(2)))
        await following.lists_up_to(A, B)
        cluster.put(written_slice("a", pod(1), service="test"))
        await following.lists_up_to(B)


async def test_long_lists_come_in_pages(cluster, followed):
    cluster.page_slices = 2
    cluster.put(*(written_slice(f"s{last}", pod(last)) for last in range(1, 8)))
    async with followed() as following:
        await following.until(lambda: following.lists)
    assert following.lists == [[f"10.0.0.{last}:8000" for last in range(1, 8)]]
    assert [query.get("continue") for query in cluster.lists] == [None, "8-2", "8-4", "8-6"]


async def test_a_list_whose_next_page_has_expired_begins_anew_and_is_never_half(cluster, followed):
    cluster.page_slices, cluster.pages_lost = 2, 1
    cluster.put(*(written_slice(f"s{last}", pod(last)) for last in range(1, 4)))
    async with followed() as following:
        await following.until(lambda: following.lists)
        assert following.source.problem is None
    assert following.lists == [[A, B, C]]
    assert [query.get("continue") for query in cluster.lists] == [None, "4-2", None, "4-2"]


async def test_a_watch_that_does_not_end_when_it_should_is_ended(cluster, followed, monkeypatch):
    """Else nothing would be listed again while it goes on, and what it does not tell would never be known."""
    monkeypatch.setattr(kubernetes_api, "WATCH_S_MAX", 0.2)
    cluster.bookmark_s = 0.01
    cluster.put(written_slice("a", pod(1)))
    async with followed() as following:
        await following.until(lambda: len(cluster.lists) >= 2)
        assert following.lists == [[A]]


async def test_a_watch_that_ends_in_order_goes_on_from_the_last_bookmark(cluster, followed):
    cluster.watch_s_max = 0.12
    cluster.put(written_slice("a", pod(1)))
    async with followed() as following:
        await following.until(lambda: len(cluster.versions) == 1)
        cluster.put(written_slice("other", pod(9), service="other"))
        await following.until(lambda: cluster.versions[-1] == "3")
        cluster.put(written_slice("a", pod(2)))
        await following.lists_up_to(B)
    assert len(cluster.lists) == 1


async def test_what_changes_between_two_watches_is_not_missed(cluster, followed):
    cluster.watch_s_max = 0.01
    cluster.put(written_slice("a", pod(1)))
    async with followed() as following:
        for last in (2, 3, 4, 5):
            await following.until(lambda: not cluster.watches)
            cluster.put(written_slice("a", pod(last)))
            await following.lists_up_to(f"10.0.0.{last}:8000")
    assert len(cluster.lists) == 1


@pytest.mark.parametrize("as_event", [True, False])
async def test_a_version_that_is_too_old_costs_a_list(cluster, followed, as_event):
    cluster.gone_as_event, cluster.watch_s_max, cluster.bookmark_s = as_event, 0.05, 60
    cluster.put(written_slice("a", pod(1)))
    with capture_logs() as logs:
        async with followed() as following:
            await following.lists_up_to(A)
            await following.until(lambda: not cluster.watches)
            cluster.put(written_slice("a", pod(2)))
            cluster.forget()
            await following.lists_up_to(B)
            await following.until(lambda: cluster.versions[-1] == "4")
            assert following.source.problem is None
    assert len(cluster.lists) == 2
    assert "kubernetes_faulty" not in {log["event"] for log in logs}


async def test_dropped_watches_lose_nothing_and_are_no_fault(cluster, followed):
    cluster.put(written_slice("a", pod(1)))
    with capture_logs() as logs:
        async with followed() as following:
            await following.lists_up_to(A)
            for last in (2, 3):  # a third one in a row would be a fault
                await following.until(lambda: cluster.watches)
                cluster.drop()
                cluster.put(written_slice("a", pod(last)))
                await following.lists_up_to(f"10.0.0.{last}:8000")
    assert {log["event"] for log in logs} == {"kubernetes_changed", "kubernetes_watch_ended"}


SPOILT = {
    "no JSON": b"<html>\n",
    "no event": b'{"kind": "Status"}\n',
    "an unknown event": b'{"type": "MOVED", "object": {}}\n',
    "an event of another kind": b'{"type": "ADDED", "object": {"metadata": 5}}\n',
    "an error": b'{"type": "ERROR", "object": {"code": 500, "message": "etcd"}}\n',
    "a line without an end": b'{"type": "ADDED", "object": {"metadata": {"name": "' + b"x" * 5_000_000,
}


@pytest.mark.parametrize("data", SPOILT.values(), ids=SPOILT)
async def test_what_is_no_event_costs_a_list(cluster, followed, data):
    cluster.put(written_slice("a", pod(1)))
    async with followed() as following:
        await following.until(lambda: cluster.watches)
        cluster.send(data)
        await following.until(lambda: len(cluster.lists) == 2)
        cluster.put(written_slice("a", pod(2)))
        await following.lists_up_to(B)


async def test_half_a_line_at_the_end_of_a_connection_is_no_event(cluster, followed):
    cluster.put(written_slice("a", pod(1)))
    async with followed() as following:
        await following.until(lambda: cluster.watches)
        cluster.send(b'{"type": "DELETED", "object": {"metadata": {"name": "a"}}}')
        cluster.send(b"")
        await following.until(lambda: len(cluster.lists) == 2)
        assert following.lists == [[A]]


async def test_events_that_come_in_pieces_are_put_together(cluster, followed):
    cluster.delay_s = 0.001
    cluster.put(written_slice("a", pod(1)))
    async with followed() as following:
        await following.lists_up_to(A)
        cluster.put(written_slice("a", pod(1), pod(2)))
        await following.lists_up_to(A, B)


async def test_a_connection_that_dies_silently_is_found_by_its_silence(cluster, followed, monkeypatch):
    monkeypatch.setattr(kubernetes_api, "SILENCE_S", 0.1)
    cluster.put(written_slice("a", pod(1)))
    async with followed() as following:
        await following.until(lambda: cluster.watches)
        cluster.silent = True
        cluster.put(written_slice("a", pod(2)))
        await following.lists_up_to(B)
    assert len(cluster.lists) >= 2


def forbidden(verb):
    user = 'User "system:serviceaccount:gpu:dispatcher"'
    cannot = f'cannot {verb} resource "endpointslices" in API group "discovery.k8s.io"'
    told = f"endpointslices.discovery.k8s.io is forbidden: {user} {cannot}"
    what = f"does not let this account {verb} EndpointSlices in namespace gpu"
    return f"{what}: bind a Role with the rule {RULE} ({told})"


REFUSALS = {
    "no list": (lambda cluster: cluster.forbidden.add("list"), forbidden("list")),
    "no watch": (lambda cluster: cluster.forbidden.add("watch"), forbidden("watch")),
    "another token": (
        lambda cluster: cluster.tokens.clear(),
        "refuses the credentials (401): another cluster's, or expired",
    ),
    "another server": (
        lambda cluster: setattr(cluster, "failing", 404),
        "has no discovery.k8s.io/v1 (404): Kubernetes 1.21 or newer is needed",
    ),
    "overloaded": (
        lambda cluster: setattr(cluster, "failing", 503),
        "answers 503 (the server is currently unable to handle the request)",
    ),
}


@pytest.mark.parametrize(("spoil", "problem"), REFUSALS.values(), ids=REFUSALS)
async def test_a_refusal_is_said_once_with_what_to_do_and_the_last_list_stays(
    cluster, followed, spoil, problem
):
    cluster.put(written_slice("a", pod(1)))
    with capture_logs() as logs:
        async with followed() as following:
            await following.until(lambda: cluster.watches)
            spoil(cluster)
            cluster.drop()
            asked = len(cluster.requests)
            await following.until(lambda: len(cluster.requests) >= asked + 4)
            assert following.source.problem == problem
    assert following.lists == [[A]]
    assert [log["problem"] for log in logs if log["event"] == "kubernetes_faulty"] == [problem]


async def test_where_only_the_watch_is_forbidden_lists_tell_what_changes(cluster, followed):
    cluster.forbidden.add("watch")
    cluster.put(written_slice("a", pod(1)))
    async with followed() as following:
        await following.lists_up_to(A)
        cluster.put(written_slice("a", pod(2)))
        await following.lists_up_to(B)


async def test_an_api_server_that_is_gone_is_found_again(cluster, followed):
    cluster.put(written_slice("a", pod(1)))
    async with followed() as following:
        await following.lists_up_to(A)
        await cluster.__aexit__()
        await following.until(lambda: following.source.problem)
        assert following.source.problem.startswith("is not reached: ")
        cluster.put(written_slice("a", pod(2)))
        assert following.lists == [[A]]
        await cluster.__aenter__()
        await following.lists_up_to(B)
        await following.until(lambda: following.source.problem is None)


async def test_the_time_that_an_api_server_asks_for_is_waited(cluster, followed):
    cluster.failing, cluster.headers = 429, {"Retry-After": "30"}
    async with followed() as following:
        await following.until(lambda: following.source.problem)
        await asyncio.sleep(0.1)
        assert len(cluster.requests) == 1


@pytest.mark.parametrize("may_get_namespaces", [True, False])
async def test_a_namespace_that_does_not_exist_is_named_where_that_may_be_asked(
    cluster, followed, may_get_namespaces
):
    if not may_get_namespaces:
        cluster.forbidden.add("get")
    async with followed(namespace="gpus") as following:
        await following.until(lambda: following.source.problem)
        problem = following.source.problem
    nothing = f"no EndpointSlice in namespace gpus matches {SELECTOR}: is there a Service vllm?"
    assert problem == ("there is no namespace gpus" if may_get_namespaces else nothing)


@pytest.fixture
async def pods_view(tmp_path):
    """What a pod has: an API server with TLS, a service account, and two variables."""
    cert, key = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text(TOKEN)
    (account / "namespace").write_text("gpu")
    (account / "ca.crt").write_bytes(cert.read_bytes())
    async with KubernetesServer(context=context) as server:
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
        yield server, account, environ


async def test_in_a_pod_the_service_account_is_used_and_a_token_that_was_renewed_is_read_again(pods_view):
    server, account, environ = pods_view
    server.put(written_slice("a", pod(1)))
    async with Following({"service": "vllm"}, environ, account=account) as following:
        await following.lists_up_to(A)
        server.tokens = {"renewed"}
        server.drop()
        await following.until(lambda: following.source.problem)
        (account / "token").write_text("renewed")
        server.put(written_slice("a", pod(2)))
        await following.lists_up_to(B)


async def test_a_certificate_of_another_authority_is_refused(pods_view, tmp_path):
    _, account, environ = pods_view
    (tmp_path / "other").mkdir()
    other, _ = certificate(tmp_path / "other")
    (account / "ca.crt").write_bytes(other.read_bytes())
    async with Following({"service": "vllm"}, environ, account=account) as following:
        await following.until(lambda: following.source.problem)
        assert "certificate" in following.source.problem


def test_without_a_token_or_a_kubeconfig_it_is_said_what_to_do(tmp_path, monkeypatch):
    entry = KubernetesEntry(service="vllm")
    in_pod = KubernetesApi(entry, {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, tmp_path)
    with pytest.raises(KubernetesError, match=r"no service account token in .*automountServiceAccountToken"):
        in_pod.check()
    chosen = KubernetesEntry(service="vllm", context="east")
    with pytest.raises(KubernetesError, match="has a context, but no kubeconfig"):
        KubernetesApi(chosen, {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, tmp_path).check()
    with pytest.raises(KubernetesError, match=r"is no pod of Kubernetes, .*no kubeconfig at /nowhere"):
        KubernetesApi(entry, {"KUBECONFIG": "/nowhere"}, tmp_path).check()
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(KubernetesError, match=r"no kubeconfig at ~/\.kube/config"):
        KubernetesApi(entry, {}, tmp_path).check()


async def test_a_kubeconfigs_program_is_asked_for_a_token_again_when_the_one_before_has_expired(
    cluster, tmp_path
):
    """As on EKS, GKE and AKS."""
    path, token = kubeconfig(tmp_path, cluster), tmp_path / "token.json"
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    token.write_text(json.dumps(answer | {"status": {"token": TOKEN}}))
    content = yaml.safe_load(path.read_text())
    program = {"apiVersion": answer["apiVersion"], "command": "cat", "args": [str(token)]}
    content["users"][0]["user"] = {"exec": program | {"interactiveMode": "Never"}}
    path.write_text(yaml.safe_dump(content))
    cluster.put(written_slice("a", pod(1)))
    async with Following({"service": "vllm", "kubeconfig": str(path)}) as following:
        await following.lists_up_to(A)
        token.write_text(json.dumps(answer | {"status": {"token": "renewed"}}))
        cluster.tokens = {"renewed"}
        cluster.drop()
        cluster.put(written_slice("a", pod(2)))
        await following.lists_up_to(B)


async def test_a_kubeconfig_that_cannot_be_used_is_a_fault_that_is_said(tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text("clusters: 5\n")
    async with Following({"service": "vllm", "kubeconfig": str(path)}) as following:
        await following.until(lambda: following.source.problem)
        assert following.source.problem.startswith("has no usable credentials: ")


QUICK = {"probe_interval_s": 0.1, "scrape_interval_s": 0.2, "readmit_backoff_min_s": 0.1, "limit": 4}
SLOW = EngineSettings(max_sequences=8, decode_step_s=0.01)


@asynccontextmanager
async def running(job, registry, **discovery):
    config = load_config(
        None, {"pool": QUICK, "run": {"output": str(job.output)}, "discovery": {"kubernetes": discovery}}, {}
    )
    async with open_fleet(config, Metrics(registry)) as fleet, started(job, config, fleet) as run:
        yield run


def slice_at(server: FakeServer, name, **conditions):
    ports = ({"name": "http", "port": server.port, "protocol": "TCP"},)
    return written_slice(name, endpoint("127.0.0.1", name, **conditions), ports=ports)


async def test_a_job_goes_on_while_pods_come_terminate_and_the_api_server_is_lost(
    cluster, job, serve, tmp_path, monkeypatch
):
    monkeypatch.setattr(sources, "LOOK_EVERY_S", 0.05)
    leaving, staying, coming = [await serve(engine=SLOW, answer_tokens=10) for _ in range(3)]
    cluster.put(slice_at(leaving, "leaving"), slice_at(staying, "staying"))
    discovery = {"service": "vllm", "kubeconfig": str(kubeconfig(tmp_path, cluster))}
    registry, labels = CollectorRegistry(), {"source": "kubernetes:vllm"}

    def faulty():
        return registry.get_sample_value("dispatcher_source_faulty", labels)

    async with running(job.write(rows(90)), registry, **discovery) as going:
        await going.until(lambda: leaving.in_flight == staying.in_flight == 4)
        cluster.put(slice_at(leaving, "leaving", serving=True, terminating=True))
        await going.until(lambda: going.states(leaving) in (["draining"], [None]))
        await going.until(lambda: going.states(leaving) == [None])
        cluster.put(slice_at(coming, "coming", ready=False))
        await going.until(lambda: sends(coming))
        assert faulty() == 0
        cluster.failing = 500
        cluster.drop()
        await going.until(lambda: faulty() == 1)
        assert going.states(staying, coming) == ["active"] * 2
        await going.end(90)
    assert leaving.disconnects == 0
    assert len(sends(leaving, staying, coming)) == 90


def test_what_is_missing_is_a_fault_of_the_settings(tmp_path):
    listed = [{"service": "a", "kubeconfig": str(tmp_path / "none")}]
    config = load_config(None, {"discovery": {"kubernetes": listed}}, {})
    with pytest.raises(ConfigError, match=r"^discovery\.kubernetes\[0\]: this is no pod of Kubernetes"):
        sources.check_sources(config)

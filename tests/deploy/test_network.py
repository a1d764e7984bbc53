"""Whom the NetworkPolicies let a pod talk to, judged as a cluster judges them."""

from dataclasses import dataclass, field

import pytest
from chart_values import SEVERAL
from manifests import KUBERNETES, chart, kustomized

WAYS = {
    "single": lambda: kustomized(KUBERNETES / "overlays" / "single"),
    "several": lambda: kustomized(KUBERNETES / "overlays" / "several"),
    "job": lambda: kustomized(KUBERNETES / "overlays" / "job"),
    "chart": chart,
    "chart: several": lambda: chart(SEVERAL),
    "chart: job": lambda: chart({"service": {"enabled": False}, "job": {"enabled": True}}),
}


@dataclass(frozen=True)
class Peer:
    """The other end: a pod, or with no labels something that is none."""

    port: int
    protocol: str = "TCP"
    labels: dict = field(default_factory=dict)
    namespace: str | None = None
    """None: the policy's own."""


OUT = {
    "the cluster's name server": Peer(53, "UDP", {"k8s-app": "kube-dns"}, "kube-system"),
    "the same, for long answers": Peer(53, "TCP", {"k8s-app": "kube-dns"}, "kube-system"),
    "a node's own cache of names": Peer(53, "UDP"),
    "a vLLM server": Peer(8000, labels={"app.kubernetes.io/name": "vllm"}),
    "the API server": Peer(443),
    "the API server, behind its Service": Peer(6443),
    "an object store": Peer(443),
    "a collector of traces": Peer(4318, labels={"app": "collector"}, namespace="monitoring"),
}
POSTGRESQL = Peer(5432)
STRANGERS = {
    "another pod": Peer(8000, labels={"app.kubernetes.io/name": "web"}),
    "another namespace's vLLM": Peer(8000, labels={"app.kubernetes.io/name": "vllm"}, namespace="other"),
    "anything of the cluster's": Peer(10250),
    "ssh": Peer(22),
}


@pytest.fixture(scope="module", params=WAYS)
def policy(request):
    """The policy's spec, and what its pods are called by; whether they are several."""
    objects = WAYS[request.param]()
    (spec,) = (each["spec"] for each in objects if each["kind"] == "NetworkPolicy")
    templates = [each["spec"]["template"] for each in objects if each["kind"] in {"Deployment", "Job"}]
    return spec, templates, "several" in request.param


def test_every_pod_of_ours_is_under_the_policy(policy):
    spec, templates, _ = policy
    wanted = spec["podSelector"]["matchLabels"].items()
    assert templates
    assert all(wanted <= each["metadata"]["labels"].items() for each in templates)


@pytest.mark.parametrize("peer", OUT.values(), ids=OUT)
def test_what_a_pod_needs_it_reaches(policy, peer):
    assert reaches(policy[0], peer)


def test_the_database_is_reached_where_there_is_one_and_only_there(policy):
    assert reaches(policy[0], POSTGRESQL) is policy[2]


@pytest.mark.parametrize("peer", STRANGERS.values(), ids=STRANGERS)
def test_what_a_pod_does_not_need_it_does_not_reach(policy, peer):
    assert not reaches(policy[0], peer)


def test_clients_of_the_namespace_and_prometheus_are_let_in_and_others_are_not(policy):
    spec, *_ = policy
    assert lets_in(spec, Peer(0, labels={"app": "notebook"}))
    assert lets_in(spec, Peer(0, labels={"app": "prometheus"}, namespace="monitoring"))
    assert not lets_in(spec, Peer(0, labels={"app": "x"}, namespace="other"))
    assert not lets_in(spec, Peer(0))


def test_a_chart_of_vllm_servers_by_another_name_reaches_them():
    vllm = {"enabled": True, "name": "llama"}
    objects = chart({"vllm": vllm, "config": {"discovery": {"kubernetes": {"service": "llama"}}}})
    (spec,) = (each["spec"] for each in objects if each["kind"] == "NetworkPolicy")
    assert reaches(spec, Peer(8000, labels={"app.kubernetes.io/name": "llama"}))
    assert reaches(spec, Peer(8000, labels={"app.kubernetes.io/name": "vllm"}))


def reaches(spec, peer):
    """Whether any egress rule holds. https://kubernetes.io/docs/concepts/services-networking/network-policies/"""
    return any(
        _is_one_of(rule.get("to"), peer) and _is_at_one_of(rule.get("ports"), peer) for rule in spec["egress"]
    )


def lets_in(spec, peer):
    """Whether any ingress rule holds, at the port named http."""
    return any(
        _is_one_of(rule.get("from"), peer) and {"port": "http", "protocol": "TCP"} in rule["ports"]
        for rule in spec["ingress"]
    )


def _is_one_of(peers, peer):
    return not peers or any(_matches(each, peer) for each in peers)


def _matches(selectors, peer):
    if not peer.labels:  # no pod: only an ipBlock is of those
        return False
    if "namespaceSelector" in selectors:
        wanted = selectors["namespaceSelector"].get("matchLabels", {})
        if not wanted.items() <= {"kubernetes.io/metadata.name": peer.namespace or "default"}.items():
            return False
    elif peer.namespace is not None:
        return False
    return selectors.get("podSelector", {}).get("matchLabels", {}).items() <= peer.labels.items()


def _is_at_one_of(ports, peer):
    return not ports or any((each["port"], each["protocol"]) == (peer.port, peer.protocol) for each in ports)

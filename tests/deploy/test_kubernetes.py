"""Manifests and chart: they are valid, they agree, and what they name is there in the code."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from aiohttp import web
from chart_values import KEYS, SEVERAL, VALUES
from manifests import (
    DEPLOY,
    KUBERNETES,
    by_name,
    chart,
    comparable,
    kustomized,
    module,
    own_overlay,
    pod_specs,
    required,
)
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from dispatcher.api import health
from dispatcher.app import service
from dispatcher.cli.commands import app
from dispatcher.config import load_config
from dispatcher.config.settings import QueueSettings
from dispatcher.dispatch import node
from dispatcher.telemetry.series import FleetFamilies, ServerFamilies

pytestmark = pytest.mark.services

VERSIONS = ("1.31", "1.37")
SECRET = {"api-keys", "server-api-key", "metrics-key", "queue-url", "queue-owner-url"}
"""The items that docs/operations.md says how to make."""
OVERLAYS = ("single", "several", "job", "vllm")
COMPONENTS = {
    "single with monitoring": ("single", "monitoring"),
    "several with monitoring": ("several", "monitoring"),
    "single with the service's list": ("single", "monitoring", "server-list"),
    "job with monitoring": ("job", "monitoring-job"),
    "vllm by keda": ("vllm", "keda"),
    "vllm by an autoscaler": ("vllm", "hpa"),
}
ONE = {
    "single": ("single", (), {}),
    "several": ("several", (), SEVERAL),
    "job": ("job", (), {"service": {"enabled": False}, "job": {"enabled": True}}),
    "monitoring": ("single", ("monitoring",), VALUES["monitoring"]),
    "the service's list": ("single", ("monitoring", "server-list"), VALUES["the service's list"]),
    "job with monitoring": ("job", ("monitoring-job",), VALUES["job with monitoring"]),
    "vllm": ("vllm", (), VALUES["vllm"]),
    "vllm by keda": ("vllm", ("keda",), VALUES["vllm by keda"]),
    "vllm by an autoscaler": ("vllm", ("hpa",), VALUES["vllm by an autoscaler"]),
}
"""The same, by either tool."""


@pytest.fixture(scope="module", params=[*OVERLAYS, *COMPONENTS, *(f"chart: {name}" for name in VALUES)])
def objects(request, tmp_path_factory):
    """What one way of installing makes."""
    name = request.param
    if name.startswith("chart: "):
        return chart(VALUES[name.removeprefix("chart: ")])
    if name in COMPONENTS:
        return kustomized(own_overlay(tmp_path_factory.mktemp("overlay"), *COMPONENTS[name]))
    return kustomized(KUBERNETES / "overlays" / name)


CUSTOM = {
    "ServiceMonitor": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1",
    "PodMonitor": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1",
    "PrometheusRule": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1",
    "ScrapeConfig": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1alpha1",
    "ScaledObject": "@kubernetes-models/keda/keda.sh/v1alpha1",
}
"""Kinds that no Kubernetes has of itself, and the npm packages that hold their schemas."""
CHECK = """
    import { readFileSync } from "node:fs";
    for (const [path, content] of JSON.parse(readFileSync(process.argv[1]))) {
        const models = await import(path);
        new models[content.kind](content).validate();
    }
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_strictly(objects, version):
    validate = module("kubernetes_validate").validate
    for each in objects:
        if each["kind"] not in CUSTOM:
            validate(each, version, strict=True)


def test_every_custom_object_is_valid(objects, tmp_path):
    custom = [each for each in objects if each["kind"] in CUSTOM]
    if not custom:
        return
    modules = Path(__file__).parents[2] / "node_modules"
    required("npm install --no-save @kubernetes-models/{keda,prometheus-operator}", modules.exists())
    (tmp_path / "objects.json").write_text(json.dumps([[CUSTOM[each["kind"]], each] for each in custom]))
    checked = subprocess.run(
        ["node", "--input-type=module", "-e", CHECK, str(tmp_path / "objects.json")],
        cwd=modules.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_names_that_objects_refer_to_are_there(objects):
    names = set(by_name(objects))
    kinds = {key.partition("/")[0]: [] for key in names}
    for key in names:
        kind, _, name = key.split("/")
        kinds[kind].append(name)
    for _, spec in pod_specs(objects):
        for volume in spec.get("volumes", ()):
            if "configMap" in volume:
                assert volume["configMap"]["name"] in kinds["ConfigMap"]
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim in {None, "mine", *kinds.get("PersistentVolumeClaim", ())}
        mounted = {mount["name"] for each in spec["containers"] for mount in each.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in spec.get("volumes", ())}
        account = spec.get("serviceAccountName")
        assert account in {None, "mine", *kinds.get("ServiceAccount", ())}


def test_selectors_match_the_labels_that_they_are_meant_for(objects):
    templates = [each["spec"]["template"] for each in objects if "template" in (each.get("spec") or {})]
    labels = [template["metadata"]["labels"] for template in templates]
    for each in objects:
        selector = {
            "Service": lambda spec: spec["selector"],
            "Deployment": lambda spec: spec["selector"]["matchLabels"],
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
        }.get(each["kind"], lambda _: {})(each.get("spec"))
        assert not selector or any(selector.items() <= found.items() for found in labels), each["kind"]
    monitors = [each for each in objects if each["kind"] == "ServiceMonitor"]
    services = [each["metadata"]["labels"] for each in objects if each["kind"] == "Service"]
    for each in monitors:
        wanted = each["spec"]["selector"]["matchLabels"].items()
        assert any(wanted <= found.items() for found in services)


def test_every_pod_of_ours_is_confined(objects):
    for name, spec in pod_specs(objects):
        if name == "vllm":
            continue
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["enableServiceLinks"] is False
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]


def test_accounts_may_list_and_watch_endpoint_slices_and_nothing_else(objects):
    rules = [rule for each in objects if each["kind"] == "Role" for rule in each["rules"]]
    slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    assert all(rule == slices for rule in rules)
    assert not [each for each in objects if each["kind"].startswith("Cluster")]


def test_secrets_are_referred_to_and_never_there(objects):
    assert "Secret" not in {each["kind"] for each in objects}
    text = json.dumps(objects)
    items = re.findall(r'"(?:secretKeyRef|credentials)": \{([^}]*)\}', text)
    assert {json.loads("{" + item + "}")["key"] for item in items} <= SECRET


def settings_of(objects):
    """Every dispatcher.yaml, with its container."""
    configs = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    for _, spec in pod_specs(objects):
        maps = [volume["configMap"]["name"] for volume in spec.get("volumes", ()) if "configMap" in volume]
        for name in maps:
            if "dispatcher.yaml" in configs[name]:
                yield configs[name]["dispatcher.yaml"], spec


HAS_QUEUE_URL = "url" in QueueSettings.model_fields


def loaded(text, spec, tmp_path):
    """The settings, as the process in the pod reads them."""
    path = tmp_path / "dispatcher.yaml"
    path.write_text(text)
    names = [each["name"] for each in spec["containers"][0].get("env", ())]
    values = {
        "DISPATCHER_API__KEYS": json.dumps(KEYS),
        "DISPATCHER_API_KEY": "key",
        "DISPATCHER_QUEUE__URL": "postgresql://dispatcher:word@postgres/dispatcher",
    }
    given = {name: values[name] for name in names if name in values}
    if not HAS_QUEUE_URL:
        given.pop("DISPATCHER_QUEUE__URL", None)
    return load_config(path, {}, given)


def test_the_settings_are_accepted_and_fit_the_pod(objects, tmp_path):
    for text, spec in settings_of(objects):
        config = loaded(text, spec, tmp_path)
        container = spec["containers"][0]
        mounts = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
        port = container["ports"][0]["containerPort"]
        if container["args"][0] == "serve":
            assert (config.api.host, config.api.port) == ("0.0.0.0", port)  # noqa: S104  # of a pod
            assert config.api.keys
            assert config.storage.url in mounts or "://" in config.storage.url
        else:
            assert config.telemetry.metrics_port == port
            assert str(config.run.output.parent) in mounts
        assert config.telemetry.log_format == "json"
        assert container["workingDir"] in mounts
        (entry,) = config.discovery.kubernetes
        assert (entry.service, entry.port) == ("vllm", "http")


def test_our_own_check_accepts_every_settings_file(objects, tmp_path):
    for number, (text, _) in enumerate(settings_of(objects)):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        done = CliRunner().invoke(app, ["check", "--config", str(path)])
        assert (done.exit_code, done.stderr) == (0, "")


def test_a_volume_has_one_pod_and_an_update_ends_it_before_the_next_begins(objects):
    for each in objects:
        if each["kind"] == "Deployment" and each["metadata"]["name"] != "vllm":
            volumes = each["spec"]["template"]["spec"]["volumes"]
            if any("persistentVolumeClaim" in volume for volume in volumes):
                assert each["spec"]["replicas"] == 1
                assert each["spec"]["strategy"] == {"type": "Recreate"}


def test_no_budget_keeps_a_node_from_being_drained(objects):
    """Not even with one pod, nor with pods that are not ready."""
    for each in objects:
        if each["kind"] == "PodDisruptionBudget":
            assert "minAvailable" not in each["spec"]
            assert each["spec"]["maxUnavailable"] >= 1
            assert each["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_a_stop_ends_before_the_pod_is_killed(objects, tmp_path):
    for text, spec in settings_of(objects):
        stop = (
            spec["containers"][0].get("lifecycle", {}).get("preStop", {"exec": {"command": ["sleep", "0"]}})
        )
        assert stop["exec"]["command"][0] == "sleep"
        drain_s = loaded(text, spec, tmp_path).dispatch.drain_s
        takes_s = float(stop["exec"]["command"][1]) + drain_s + node.CLOSE_S_MAX + service.SHUTDOWN_S
        assert takes_s + 10 < spec["terminationGracePeriodSeconds"]


def test_an_update_is_not_given_up_while_the_pod_before_ends(objects):
    for each in objects:
        if each["kind"] == "Deployment" and each["metadata"]["name"] != "vllm":
            grace = each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
            assert each["spec"]["progressDeadlineSeconds"] >= grace + 300


BUSY_ANSWER_S = 40
"""What `/health` of a healthy vLLM has been seen to take under load."""
LOADING_S = 20 * 60


def test_a_vllm_server_is_not_killed_for_loading_nor_for_being_busy(objects):
    for name, spec in pod_specs(objects):
        if name == "vllm":
            (container,) = spec["containers"]
            startup, liveness = container["startupProbe"], container["livenessProbe"]
            assert startup["periodSeconds"] * startup["failureThreshold"] >= LOADING_S
            assert liveness["timeoutSeconds"] > BUSY_ANSWER_S
            assert liveness["failureThreshold"] > 1
            assert spec["terminationGracePeriodSeconds"] >= 600


def test_no_setting_of_the_image_wins_over_the_settings_file(objects):
    image = (DEPLOY.parent / "Dockerfile").read_text()
    baked = set(re.findall(r"\b(DISPATCHER_[A-Z_]+)=", image))
    for name, spec in pod_specs(objects):
        given = {each["name"] for each in spec["containers"][0].get("env", ())}
        assert name == "vllm" or baked <= given


def test_commands_take_the_arguments_that_they_get(objects):
    commands = typer.main.get_command(app).commands
    for _, spec in pod_specs(objects):
        for container in spec["containers"]:
            command, *arguments = container.get("args", ["vllm"])
            if command == "vllm" or (command == "migrate" and not HAS_QUEUE_URL):
                continue
            options = {name for each in commands[command].params for name in each.opts}
            assert {each for each in arguments if each.startswith("-")} <= options


def test_probes_and_scrapes_ask_for_routes_that_exist(objects):
    routes = {route.path for route in health.routes() if isinstance(route, web.RouteDef)}
    for name, spec in pod_specs(objects):
        for container in spec["containers"]:
            ports = {port["name"] for port in container.get("ports", ())}
            probes = [probe["httpGet"] for key, probe in container.items() if key.endswith("Probe")]
            assert {probe["port"] for probe in probes} <= ports
            known = {"/health"} if name == "vllm" else routes
            assert {probe["path"] for probe in probes} <= known
    endpoints = [
        end for each in objects if each["kind"] == "ServiceMonitor" for end in each["spec"]["endpoints"]
    ]
    assert {end["path"] for end in endpoints} <= routes


def test_queries_name_series_that_exist(objects):
    registry = CollectorRegistry()
    families = [*vars(ServerFamilies(registry)).values(), *vars(FleetFamilies(registry)).values()]
    known = {family.describe()[0].name for family in families}
    queries = [
        trigger["metadata"]["query"]
        for each in objects
        if each["kind"] == "ScaledObject"
        for trigger in each["spec"]["triggers"]
    ]
    assert set(re.findall(r"dispatcher_\w+", " ".join(queries))) <= known


@pytest.mark.parametrize(("overlay", "components", "values"), ONE.values(), ids=ONE)
def test_the_chart_and_the_kustomization_make_the_same(tmp_path, overlay, components, values):
    own = own_overlay(tmp_path, overlay, *components)
    text = (own / "kustomization.yaml").read_text()
    plain = {name: each for name, each in yaml.safe_load(text).items() if name not in {"namespace", "images"}}
    (own / "kustomization.yaml").write_text(yaml.safe_dump(plain))
    ours = comparable(kustomized(own))
    charts = comparable(chart(values))
    if overlay == "vllm":
        charts = {key: each for key, each in charts.items() if key.endswith("/vllm")}
    assert charts.keys() == ours.keys()
    for key, each in ours.items():
        assert charts[key] == each, key


def test_an_own_overlay_sets_image_and_namespace(tmp_path):
    found = kustomized(own_overlay(tmp_path, "several", "monitoring"))
    images = {each["image"] for _, spec in pod_specs(found) for each in spec["containers"]}
    assert images == {"example/dispatcher:1.2.3"}
    assert {each["metadata"]["namespace"] for each in found} == {"gpu"}


def test_the_list_of_servers_is_asked_for_in_the_namespace_that_an_own_overlay_sets(tmp_path):
    """By what docs/operations.md says."""
    own = own_overlay(tmp_path, "single", "monitoring", "server-list")
    page = (DEPLOY.parent / "docs" / "operations.md").read_text()
    (replacements,) = re.findall(r"^```yaml\n(replacements:\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    with (own / "kustomization.yaml").open("a") as content:
        content.write(replacements)
    found = {each["kind"]: each for each in kustomized(own)}
    (source,) = found["ScrapeConfig"]["spec"]["httpSDConfigs"]
    assert source["url"] == "http://dispatcher.gpu.svc:8080/servers/targets"
    assert "PodMonitor" not in found


def test_a_job_beside_a_service_shares_nothing_that_goes_with_it(tmp_path):
    """`kubectl delete -k` of one must leave the other its account, and one kustomization may have both."""
    job, service = (by_name(kustomized(KUBERNETES / "overlays" / each)) for each in ("job", "single"))
    assert not job.keys() & service.keys()
    own = own_overlay(tmp_path, "single")
    content = yaml.safe_load((own / "kustomization.yaml").read_text())
    content["resources"].append("../clone/overlays/job")
    (own / "kustomization.yaml").write_text(yaml.safe_dump(content))
    both = by_name(kustomized(own))
    assert len(both) == len(job) + len(service)
    (binding,) = (each for key, each in both.items() if key == "RoleBinding/gpu/dispatcher-job")
    assert binding["roleRef"]["name"] == binding["subjects"][0]["name"] == "dispatcher-job"


def test_copies_are_in_step():
    sys.path.insert(0, str(DEPLOY))
    try:
        from copies import copies
    finally:
        sys.path.remove(str(DEPLOY))
    for path, text in copies().items():
        assert path.read_text() == text, f"run python deploy/copies.py: {path.name} differs"

"""The chart by itself: what its values do, and which it refuses."""

import json
import re

import pytest
import yaml
from chart_values import BAD_VALUES, SEVERAL, VALUES
from manifests import CHART, by_name, chart, module, notes, pod_specs

pytestmark = pytest.mark.services


def test_a_charts_grace_follows_its_drain():
    objects = chart({"config": {"dispatch": {"drain_s": 1800.5}}})
    (_, spec), *_ = pod_specs(objects)
    assert spec["terminationGracePeriodSeconds"] == 1861
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    assert deployment["spec"]["progressDeadlineSeconds"] == 2461


def test_a_release_of_another_name_names_its_objects_by_it_and_two_do_not_meet():
    first, second = (by_name(chart({"job": {"enabled": True}}, name)) for name in ("east", "my-dispatcher"))
    assert not first.keys() & second.keys()
    assert {key.split("/")[2].removesuffix("-job") for key in first} == {"east-dispatcher"}
    assert {key.split("/")[2].removesuffix("-job") for key in second} == {"my-dispatcher"}


def test_releases_of_one_name_do_not_meet_in_the_namespace_whose_servers_both_use():
    values = {"rbac": {"namespaces": ["models"]}}
    east, west = (by_name(chart(values, namespace=each)) for each in ("east", "west"))
    both = {key for key in east.keys() & west.keys() if "/models/" in key}
    assert not both
    assert {"Role/models/east-dispatcher", "RoleBinding/models/east-dispatcher"} <= east.keys()
    assert east["RoleBinding/models/east-dispatcher"]["roleRef"]["name"] == "east-dispatcher"


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_helm_lints_strictly(values):
    report = module("helm_python").lint(str(CHART), values, strict=True, kube_version="v1.31.0")
    assert [each for each in report["messages"] if each["severity"] > 1] == []


@pytest.mark.parametrize(("values", "named"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_values_that_cannot_work_are_refused_with_their_place(values, named):
    with pytest.raises(module("helm_python").HelmError) as refused:
        chart(values)
    assert named in str(refused.value)


def test_what_is_added_to_the_environment_and_mounted_is_so_in_every_pod():
    """A database's certificates are of use to the migration, too. Of two variables of a name the last counts:
    the user's, but for the owner's address.
    """
    added = {
        "extraEnv": [{"name": "SSL_CERT_FILE", "value": "/etc/authority/ca.crt"}],
        "extraVolumes": [{"name": "authority", "secret": {"secretName": "authority"}}],
        "extraVolumeMounts": [{"name": "authority", "mountPath": "/etc/authority"}],
    }
    pods = dict(pod_specs(chart({**SEVERAL, **added, "job": {"enabled": True}})))
    assert set(pods) == {"dispatcher", "dispatcher-migrate", "dispatcher-job"}
    for spec in pods.values():
        (container,) = spec["containers"]
        last = container["env"][-2:] if "migrate" in container["args"] else container["env"][-1:]
        assert last[0] == added["extraEnv"][0]
        assert added["extraVolumes"][0] in spec["volumes"]
        assert added["extraVolumeMounts"][0] in container["volumeMounts"]


def test_users_are_left_to_the_cluster_where_that_is_asked_for():
    pods = dict(pod_specs(chart(VALUES["users that the cluster gives"])))
    assert set(pods) == {"dispatcher", "dispatcher-migrate", "dispatcher-job"}
    for spec in pods.values():
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(spec["securityContext"])
        assert spec["securityContext"]["runAsNonRoot"] is True


def test_sources_of_variables_come_after_the_storages_own():
    """Of two that hold a name the last counts."""
    more = {"secretRef": {"name": "more"}}
    pods = dict(pod_specs(chart({**SEVERAL, "extraEnvFrom": [more], "job": {"enabled": True}})))
    storage = {"secretRef": {"name": "dispatcher-storage", "optional": True}}
    assert pods["dispatcher"]["containers"][0]["envFrom"] == [storage, more]
    assert pods["dispatcher-job"]["containers"][0]["envFrom"] == [more]


def test_an_ingress_leads_to_the_service_by_a_port_that_it_has():
    objects = chart({"ingress": {"enabled": True, "host": "d.example"}}, name="east")
    found = {each["kind"]: each for each in objects}
    (rule,) = found["Ingress"]["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    target = path["backend"]["service"]
    assert (rule["host"], path["path"]) == ("d.example", "/")
    assert target["name"] == found["Service"]["metadata"]["name"]
    assert target["port"]["name"] in {each["name"] for each in found["Service"]["spec"]["ports"]}
    assert "Ingress" not in {each["kind"] for each in chart({})}


def test_servers_are_scraped_in_the_namespaces_where_they_are_found():
    def selector(**values):
        objects = chart({"monitoring": {"podMonitor": {"enabled": True}}, **values})
        (monitor,) = (each for each in objects if each["kind"] == "PodMonitor")
        return monitor["spec"].get("namespaceSelector")

    assert selector() is None
    assert selector(rbac={"namespaces": ["models", "more"]}) == {"matchNames": ["models", "more"]}


def test_notes_say_who_is_not_let_in_where_clients_come_from_outside():
    for values in (
        {"service": {"type": "LoadBalancer"}},
        {"ingress": {"enabled": True, "host": "d.example"}},
    ):
        assert "networkPolicy.clients" in notes(values)
        assert "networkPolicy.clients" not in notes({**values, "networkPolicy": {"enabled": False}})
    assert "networkPolicy.clients" not in notes({})


def test_a_changed_setting_restarts_the_pods_of_the_chart():
    def checksum(values):
        (deployment,) = (each for each in chart(values) if each["kind"] == "Deployment")
        return deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

    assert checksum({}) == checksum({})
    assert checksum({}) != checksum({"config": {"pool": {"stall_s": 60}}})


def test_every_value_is_in_the_schema_and_in_the_readme():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}
    told = set(re.findall(r"^\| `([\w.]+)` \|", (CHART.parent / "README.md").read_text(), re.MULTILINE))
    assert told == set(_documented(values, schema))


def _documented(values, schema, prefix=""):
    """Every value down to where the schema leaves it open."""
    for name, value in values.items():
        below = schema["properties"][name]
        if isinstance(value, dict) and below.get("additionalProperties") is False and "requests" not in value:
            yield from _documented(value, below, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"

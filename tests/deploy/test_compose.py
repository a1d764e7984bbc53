"""What stands in the compose file belongs together: files, names, ports, and the key."""

from hashlib import sha256
from pathlib import Path

import pytest
import yaml

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose"
GRAFANA = COMPOSE.parent / "grafana"


def read(name):
    return yaml.safe_load((COMPOSE / name).read_text())


SERVICES = read("compose.yaml")["services"]
KEY = SERVICES["traffic"]["environment"]["OPENAI_API_KEY"]


def mounts(service):
    """Where each file of the repository is seen in the container."""
    pairs = [volume.split(":") for volume in SERVICES[service].get("volumes", ())]
    return {target: COMPOSE / source for source, target, *_ in pairs if source.startswith(".")}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_started_again_is_seen_on_this_machine_alone_and_has_the_files_it_mounts(name):
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert all(path.exists() for path in mounts(name).values())


def test_the_dispatcher_drives_the_three_servers_and_knows_the_key_that_is_shown_to_it():
    config = read("dispatcher.yaml")
    assert config["servers"] == [f"http://{name}:8000" for name in SERVICES if name.startswith("vllm-")]
    (key,) = config["api"]["keys"]
    assert key["hash"] == f"sha256:{sha256(KEY.encode()).hexdigest()}"
    assert SERVICES["dispatcher"]["command"][-1] in mounts("dispatcher")


def test_prometheus_scrapes_them_all_by_their_names_and_has_its_rules():
    config = read("prometheus.yml")
    dispatcher, vllm = config["scrape_configs"]
    assert dispatcher["authorization"]["credentials"] == KEY
    scraped = [target for job in (dispatcher, vllm) for target in job["static_configs"][0]["targets"]]
    assert {target.partition(":")[0] for target in scraped} == {"dispatcher", "vllm-1", "vllm-2", "vllm-3"}
    seen = mounts("prometheus")
    assert "/etc/prometheus/prometheus.yml" in seen
    assert all(f"/etc/prometheus/{name}" in seen for name in config["rule_files"])


def test_grafana_finds_its_source_and_its_dashboards():
    seen = mounts("grafana")
    assert seen["/etc/grafana/provisioning"].resolve() == GRAFANA / "provisioning"
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)  # the dashboards ask for the default
    host, port = source["url"].removeprefix("http://").split(":")
    assert any(published.endswith(f":{port}") for published in SERVICES[host]["ports"])
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/dispatcher.yml").read_text())[
        "providers"
    ]
    assert len(list(seen[provider["options"]["path"]].glob("*.json"))) == 3


def test_the_dispatcher_has_longer_to_stop_than_it_may_take():
    grace_s = int(SERVICES["dispatcher"]["stop_grace_period"].removesuffix("s"))
    drain_s = read("dispatcher.yaml").get("dispatch", {}).get("drain_s", 300)
    assert grace_s >= drain_s + 35  # outcomes made durable, open HTTP requests

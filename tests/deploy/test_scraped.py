"""What the monitors of the manifests make a Prometheus scrape, done by a real one: series come, and join."""

import hashlib
from urllib.parse import urlsplit

import pytest
from jobs import CHAT, lines, rows
from manifests import chart
from prometheus import watching
from services import serving

from dispatcher.testing import EngineSettings

pytestmark = [pytest.mark.services, pytest.mark.timeout(120)]
KEY = "a-key-of-the-test"
KEYS = [{"name": "ann", "role": "admin", "hash": f"sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"}]
SLOW = EngineSettings(max_sequences=4, decode_step_s=0.5)
ROWS = 400
JOINED = (
    "sum by (server) (dispatcher_server_in_flight) - on (server) sum by (server) (vllm:num_requests_running)"
)
OFTEN = {"scrape_interval": "1s"}


def monitors(**enabled):
    """The chart's objects with these monitors, by kind: of two the dispatcher's own."""
    wanted = {"serviceMonitor": {"enabled": True}} | {name: {"enabled": True} for name in enabled}
    vllm = {"enabled": True, "autoscaling": {"kind": "keda"}}
    objects = chart({"monitoring": wanted, "vllm": vllm})
    return {each["kind"]: each for each in sorted(objects, key=_is_ours)}


def _is_ours(content):
    return content["metadata"]["labels"]["app.kubernetes.io/name"] == "dispatcher"


def of_service(found, service):
    """As the operator does it: the job is called like the Service."""
    monitor, labels = found["ServiceMonitor"]["spec"], found["Service"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["endpoints"]
    return {
        "job_name": found["Service"]["metadata"]["name"],
        "metrics_path": endpoint["path"],
        "authorization": _authorized(endpoint),
        "static_configs": [{"targets": [urlsplit(service).netloc]}],
    }


def of_pods(found, servers):
    (endpoint,) = found["PodMonitor"]["spec"]["podMetricsEndpoints"]
    relabelings = [
        {
            "source_labels": each["sourceLabels"],
            "separator": each["separator"],
            "target_label": each["targetLabel"],
        }
        for each in endpoint["relabelings"]
    ]
    return {
        "job_name": "pods",
        "metrics_path": endpoint["path"],
        "relabel_configs": relabelings,
        "static_configs": [{"targets": [urlsplit(server.url).netloc for server in servers]}],
    }


def of_the_list(found, service):
    (source,) = found["ScrapeConfig"]["spec"]["httpSDConfigs"]
    url = urlsplit(source["url"])
    assert url.netloc == "dispatcher.default.svc:8080"
    discovered = {"url": service + url.path, "refresh_interval": "1s", "authorization": _authorized(source)}
    return {"job_name": "servers", "http_sd_configs": [discovered]}


def _authorized(content):
    assert content["authorization"]["credentials"] == {"name": "dispatcher", "key": "metrics-key"}
    return {"type": content["authorization"]["type"], "credentials": KEY}


@pytest.mark.parametrize("way", ["podMonitor", "scrapeConfig"])
async def test_a_servers_own_series_join_the_dispatchers(way, serve, tmp_path):
    servers = [await serve(engine=SLOW, answer_tokens=20) for _ in range(2)]
    found = monitors(**{way: True})
    rules = tmp_path / "rules.yml"
    rules.write_text("groups: []\n")
    settings = {"api": {"port": 0, "keys": KEYS}, "pool": {"limit": 2}}
    async with serving(tmp_path / "storage", *servers, **settings) as stage:
        theirs = of_pods(found, servers) if way == "podMonitor" else of_the_list(found, stage.url)
        scrapes = [of_service(found, stage.url) | OFTEN, theirs | OFTEN]
        async with watching(tmp_path, stage.http, scrapes, rules, "http://127.0.0.1:9/") as seen:
            await _submit(stage)
            await seen.until(f"count({JOINED}) == 2")
            (trigger,) = found["ScaledObject"]["spec"]["triggers"]
            await seen.until(f"{trigger['metadata']['query']} > {ROWS // 2}")


async def _submit(stage):
    sdk = stage.sdk.with_options(api_key=KEY)
    file = await sdk.files.create(file=("in.jsonl", lines(rows(ROWS)).encode()), purpose="batch")
    await sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")

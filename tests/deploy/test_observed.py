"""A real Prometheus and Alertmanager watch a service under load, with faults."""

import asyncio
import json
import re
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from aiohttp import web
from jobs import CHAT, MODEL, rows
from loopback import served
from prometheus import tool, watching
from services import serving

from dispatcher.testing import Die, EngineSettings, Match, Respond

pytestmark = [pytest.mark.services, pytest.mark.timeout(120)]

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
QUICK = {"readmit_backoff_min_s": 0.2, "readmit_backoff_max_s": 0.5, "probe_interval_s": 0.5}
ENGINE = EngineSettings(max_sequences=8, decode_step_s=0.02)


class Hook:
    """What Alertmanager tells."""

    def __init__(self):
        self.alerts = []

    async def take(self, request):
        self.alerts += (await request.json())["alerts"]
        return web.Response()

    async def until(self, name, status="firing", within_s=30.0):
        async with asyncio.timeout(within_s):
            while not (found := [alert for alert in self.alerts if _is(alert, name, status)]):  # noqa: ASYNC110  # it is told
                await asyncio.sleep(0.1)
        return found[0]


def _is(alert, name, status):
    return (alert["labels"]["alertname"], alert["status"]) == (name, status)


@asynccontextmanager
async def hooked():
    hook, application = Hook(), web.Application()
    application.router.add_post("/", hook.take)
    async with served(application) as url:
        yield hook, f"{url}/"


def scrapes(service):
    """Those of deploy/prometheus/prometheus.yml, with the service's address, and quick to find servers."""
    text = (
        (DEPLOY / "prometheus" / "prometheus.yml")
        .read_text()
        .replace("dispatcher:8080", urlsplit(service).netloc)
    )
    configured = yaml.safe_load(text)["scrape_configs"]
    for found in configured[1]["http_sd_configs"]:
        found["refresh_interval"] = "1s"
    return configured


def impatient(directory):
    """The rules, but for how long alerts wait."""
    text = (DEPLOY / "prometheus" / "rules.yml").read_text()
    path = directory / "rules.yml"
    path.write_text(re.sub(r"\bfor: \w+", "for: 1s", text))
    return path


@asynccontextmanager
async def observed(directory, serve):
    """A service with three servers, each with its own faults, and what watches it."""
    servers = [await serve(engine=ENGINE, answer_tokens=8) for _ in range(3)]
    listed = directory / "servers.txt"
    listed.write_text(f"{servers[0].url}\n")
    for server in servers:
        server.inject(Respond(500, ""), Match(text="row-000.1"), times=5)
    async with (
        hooked() as (hook, webhook),
        serving(directory / "storage", *servers, pool=QUICK, discovery={"file": str(listed)}) as stage,
        watching(directory, stage.http, scrapes(stage.url), impatient(directory), webhook) as prometheus,
    ):
        yield servers, hook, stage, prometheus


async def load(stage, servers):
    """A job, live requests beside it, and a server that dies and comes back."""
    batch = await stage.submit(rows(4000))
    await stage.until(batch, lambda found: found.request_counts.completed > 40)
    await servers[0].die(Die(seconds=1.0))
    for number in range(10):
        body = {"model": MODEL, "messages": [{"role": "user", "content": f"live-{number}"}]}
        async with stage.http.post(stage.url + CHAT, json=body) as answer:
            await answer.read()
        await asyncio.sleep(0.2)
    return batch


async def expressions(prometheus, board):
    """Every expression of a dashboard, with its variables filled in as Grafana does."""
    values = {"__rate_interval": "1m", "job": "dispatcher"}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()
            series = series.replace("$job", "dispatcher")
            found = await prometheus.get(f"label/{label}/values", **{"match[]": series})
            assert found, f"the variable {variable['name']} has no value"
            values[variable["name"]] = variable.get("allValue") or found[0]
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], re.sub(r"\$(\w+)", lambda match: values[match[1]], target["expr"])


async def empty_panels(prometheus):
    found = []
    for path in BOARDS:
        async for title, expr in expressions(prometheus, json.loads(path.read_text())):
            if not await prometheus.query(expr):
                found.append(f"{path.stem}: {title}: {expr}")
    return found


async def test_every_panel_has_data_and_an_alert_reaches_its_webhook(tmp_path, serve):
    async with observed(tmp_path, serve) as (servers, hook, stage, prometheus):
        batch = await load(stage, servers)
        await prometheus.until('job:dispatcher_servers_active:count{job="dispatcher"} == 3')
        await prometheus.until("job:dispatcher_outcomes_failed:ratio_rate10m >= 0")
        assert await empty_panels(prometheus) == []
        evicted = await prometheus.query("sum by (reason) (dispatcher_evictions_total) > 0")
        assert [series["metric"] for series in evicted] == [{"reason": "died"}]

        for server in servers:
            await server.stop_listening()
        told = await hook.until("DispatcherNoUsableServer")
        assert told["labels"] | {"instance": ""} == {
            "alertname": "DispatcherNoUsableServer",
            "instance": "",
            "job": "dispatcher",
            "severity": "critical",
        }
        assert told["annotations"]["summary"].startswith(f"Rows wait on {told['labels']['instance']}")
        await hook.until("DispatcherEvictionStorm")
        for server in servers:
            await server.listen()
        await hook.until("DispatcherNoUsableServer", "resolved")
        await stage.sdk.batches.cancel(batch.id)


async def test_promtool_has_nothing_to_say_about_the_metrics_of_a_service(tmp_path, serve):
    promtool = tool("promtool")
    async with serving(tmp_path, await serve()) as stage:
        await stage.until_ended(await stage.submit(rows(20)))
        async with stage.http.get(f"{stage.url}/metrics") as answer:
            text = await answer.read()
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        promtool, "check", "metrics", stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(text), 30)
    assert (process.returncode, said) == (0, b"")
    assert b"\nprocess_resident_memory_bytes " in text

"""Prometheus' rules: promtool's word on them, and that none stands there without its test and its runbook."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from dispatcher.telemetry.series import FleetFamilies, ServerFamilies

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
TESTS = Path(__file__).with_name("rules_test.yml")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
RECORDED = {rule["record"]: rule for group in GROUPS for rule in group["rules"] if "record" in rule}
TRIALS = [trial for test in yaml.safe_load(TESTS.read_text())["tests"] for trial in test["promql_expr_test"]]


def promtool(*argv):
    path = shutil.which("promtool")
    if path is None:
        required = os.environ.get("DISPATCHER_REQUIRE_SERVICES") == "1"
        (pytest.fail if required else pytest.skip)("promtool is not installed (apt-get install prometheus)")
    done = subprocess.run([path, *map(str, argv)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.services
@pytest.mark.parametrize(
    "argv",
    [
        ("check", "rules", RULES),
        ("check", "config", RULES.with_name("prometheus.yml")),
        ("test", "rules", TESTS),
    ],
    ids=["rules", "config", "tests"],
)
def test_promtool_agrees(argv):
    promtool(*argv)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_seen_to_fire_and_not_to_fire(alert):
    trials = [trial for trial in TRIALS if f'alertname="{alert}"' in trial["expr"]]
    fires = [trial for trial in trials if trial["exp_samples"]]
    silent = [trial for trial in trials if not trial["exp_samples"]]
    assert fires, "no test sees it fire"
    assert silent, "no test sees it not fire"
    severity = ALERTS[alert]["labels"]["severity"]
    assert all(
        f'severity="{severity}"' in sample["labels"] for trial in fires for sample in trial["exp_samples"]
    )


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_figure_is_held_against_a_value(name):
    assert any(name in trial["expr"] and trial["exp_samples"] for trial in TRIALS)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_is_wrong_how_bad_it_is_and_where_to_read_on(alert):
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{alert.lower()}"


def test_the_operator_s_page_has_a_paragraph_for_each_alert_and_for_no_other():
    told = re.findall(r"^#### (Dispatcher\w+)\n+(.+)$", OPERATIONS, re.MULTILINE)
    assert [name for name, _ in told] == list(ALERTS)
    assert all(len(text) > 80 for _, text in told), "a heading is no advice"


def test_rules_use_series_that_exist():
    registry = CollectorRegistry()
    ours = {
        sample
        for families in (ServerFamilies(registry), FleetFamilies(registry))
        for family in vars(families).values()
        for metric in family.describe()
        for sample in _samples(metric)
    }
    used = {
        name
        for rule in (*ALERTS.values(), *RECORDED.values())
        for name in re.findall(r"(?<![\w:])dispatcher_\w+", rule["expr"])
    }
    assert used <= ours
    recorded = {
        name
        for rule in (*ALERTS.values(), *RECORDED.values())
        for name in re.findall(r"job\w*:\w+:\w+", rule["expr"])
    }
    assert recorded <= set(RECORDED)


def _samples(metric):
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(metric.type, ("",))
    return [metric.name + end for end in ends]

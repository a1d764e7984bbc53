"""Bring what stands in several places of `deploy/` back in step: `python deploy/copies.py`.

A chart can read files of its own directory only, and a PrometheusRule has the rules within.
"""

from collections.abc import Mapping
from pathlib import Path

import yaml

DEPLOY = Path(__file__).parent
CHART = DEPLOY / "helm" / "dispatcher"
RULES = DEPLOY / "prometheus" / "rules.yml"
DRAIN = DEPLOY / "kubernetes" / "overlays" / "vllm" / "drain.py"
LABELS = {"app.kubernetes.io/name": "dispatcher", "app.kubernetes.io/instance": "dispatcher"}


def copies() -> Mapping[Path, str]:
    """What each copy is to hold."""
    rules = RULES.read_text()
    return {
        CHART / "files" / "rules.yml": rules,
        CHART / "files" / "drain.py": DRAIN.read_text(),
        DEPLOY / "kubernetes" / "components" / "monitoring" / "rules.yaml": _prometheus_rule(rules),
    }


def _prometheus_rule(rules: str) -> str:
    content = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "dispatcher", "labels": LABELS},
        "spec": yaml.safe_load(rules),
    }
    made = "# Made of deploy/prometheus/rules.yml by deploy/copies.py.\n"
    return made + yaml.safe_dump(content, sort_keys=False, width=120)


if __name__ == "__main__":
    for path, text in copies().items():
        path.write_text(text)

"""Makes Grafana's dashboards of the YAML beside it: `python deploy/grafana/build.py` writes `dashboards/`.

A YAML file has rows of panels with their expressions, and nothing of how Grafana draws them: that is here.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import yaml

HERE = Path(__file__).parent
SCHEMA_VERSION = 39
"""Grafana 10.4's; later ones migrate it."""
COLUMNS = 24
"""Of Grafana's grid."""
WIDTH, HEIGHT = 8, 8
LINES_MAX = 50
"""Of a panel with a line for each server: of thousands no browser draws them all, and nobody reads them."""
LINES = {"highest": "topk", "lowest": "bottomk"}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
VARIABLES = {
    "job": ("Fleet", "label_values(dispatcher_build_info, job)", False),
    "server": ("Server", 'label_values(dispatcher_server_limit{job="$job"}, server)', True),
}
"""Name -> label, query, and whether several values may be chosen."""

_ALL = {"allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}}
"""Whatever there is when it is asked, not what there was when the page was opened: servers come and go."""


def text_of(description: Path) -> str:
    """A dashboard's JSON, as it is to stand in `dashboards/`."""
    described = yaml.safe_load(description.read_text())
    return json.dumps(_dashboard(described), indent=1, ensure_ascii=False) + "\n"


def place_of(description: Path) -> Path:
    """Where that JSON is to stand."""
    return description.parent / "dashboards" / f"{description.stem}.json"


def _dashboard(described: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "uid": described["uid"],
        "title": described["title"],
        "description": described["about"],
        "tags": ["dispatcher"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "links": [_to_the_others()],
        "templating": {"list": [_source(), *map(_variable, described["variables"])]},
        "panels": list(_panels(described["rows"])),
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(name: str) -> dict[str, Any]:
    label, query, several = VARIABLES[name]
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,  # whenever the time range changes
        "sort": 1,
        "multi": several,
        "includeAll": several,
        **(_ALL if several else {}),
    }


def _to_the_others() -> dict[str, Any]:
    return {
        "title": "Dispatcher",
        "type": "dashboards",
        "tags": ["dispatcher"],
        "icon": "external link",
        "tooltip": "",
        "url": "",
        "asDropdown": False,
        "targetBlank": False,
        "includeVars": True,
        "keepTime": True,
    }


def _panels(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every heading and panel with its place: from left to right, and down where a line is full."""
    number = y = 0
    for row in rows:
        number += 1
        yield _heading(row["title"], number, y)
        x, y, tallest = 0, y + 1, 0
        for panel in row["panels"]:
            number += 1
            width, height = panel.get("width", WIDTH), panel.get("height", HEIGHT)
            if x + width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            yield _panel(panel, number, {"x": x, "y": y, "w": width, "h": height})
            x, tallest = x + width, max(tallest, height)
        y += tallest


def _heading(title: str, number: int, y: int) -> dict[str, Any]:
    place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Mapping[str, Any], number: int, place: dict[str, int]) -> dict[str, Any]:
    kind, about = panel.get("kind", "timeseries"), panel["about"]
    draw = {"timeseries": _lines, "stat": _figure, "table": _table}[kind]
    return {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "description": f"{about} The {LINES_MAX} {panel['lines']} at a time." if "lines" in panel else about,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [
            _target(query, ref, panel) for query, ref in zip(panel["queries"], ascii_uppercase, strict=False)
        ],
        **draw(panel),
    }


def _target(query: Mapping[str, str], ref: str, panel: Mapping[str, Any]) -> dict[str, Any]:
    kind, expr = panel.get("kind", "timeseries"), query["expr"]
    if "lines" in panel:
        expr = f"{LINES[panel['lines']]}({LINES_MAX}, {expr})"
    target = {"refId": ref, "datasource": SOURCE, "expr": expr}
    if kind == "timeseries":
        return {**target, "range": True, "legendFormat": query.get("legend", "__auto")}
    return {
        **target,
        "instant": True,
        "range": False,
        "format": "table" if kind == "table" else "time_series",
    }


def _lines(panel: Mapping[str, Any]) -> dict[str, Any]:
    stacked = panel.get("stacked", False)
    drawn = {
        "lineWidth": 1,
        "fillOpacity": 25 if stacked else 5,
        "showPoints": "never",
        "stacking": {"mode": "normal" if stacked else "none"},
    }
    defaults = {"unit": panel.get("unit", "short"), "custom": drawn}
    if not panel.get("below_zero", False):
        defaults["min"] = 0
    if "ceiling" in panel:
        defaults["max"] = panel["ceiling"]
    return {
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _figure(panel: Mapping[str, Any]) -> dict[str, Any]:
    """One number; `nothing` stands there where the expression gives none."""
    defaults = {"unit": panel.get("unit", "short")}
    if "nothing" in panel:
        defaults["noValue"] = panel["nothing"]
    return {
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "graphMode": "none",
            "colorMode": "none",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        },
    }


def _table(panel: Mapping[str, Any]) -> dict[str, Any]:
    """One line for each combination of labels; `columns` names those shown, in order.

    `sort` is the column by which they stand, from Z to A: of states, those out of rotation come first.
    """
    columns = panel["columns"]
    sorting = {"sortBy": [{"displayName": panel["sort"], "desc": True}]} if "sort" in panel else {}
    values = [f"Value #{ref}" for _, ref in zip(panel["queries"], ascii_uppercase, strict=False)]
    hidden = {"Time", *panel.get("hidden", ()), *(value for value in values if value not in columns)}
    organised = {
        "excludeByName": dict.fromkeys(sorted(hidden), True),
        "indexByName": {name: place for place, name in enumerate(columns)},
        "renameByName": columns,
    }
    overrides = [
        {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "unit", "value": unit}]}
        for name, unit in panel.get("units", {}).items()
    ]
    return {
        "fieldConfig": {"defaults": {}, "overrides": overrides},
        "options": {"showHeader": True, **sorting},
        "transformations": [{"id": "merge", "options": {}}, {"id": "organize", "options": organised}],
    }


if __name__ == "__main__":
    for found in sorted(HERE.glob("*.yaml")):
        place_of(found).write_text(text_of(found))

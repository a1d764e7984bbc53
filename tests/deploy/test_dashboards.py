"""The dashboards: what stands there is what is made, Grafana knows each field, each expression parses."""

import importlib.util
import json
import os
import re
from pathlib import Path

import pytest

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DESCRIPTIONS = sorted(GRAFANA.glob("*.yaml"))


def _load():
    spec = importlib.util.spec_from_file_location("grafana_build", GRAFANA / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = _load()


def made(description):
    return json.loads(build.text_of(description))


def optional(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        required = os.environ.get("DISPATCHER_REQUIRE_SERVICES") == "1"
        (pytest.fail if required else pytest.skip)(
            f"{name} is not installed (pip install --group dashboards)"
        )


@pytest.fixture(params=DESCRIPTIONS, ids=lambda path: path.stem)
def description(request):
    return request.param


def test_there_are_three_with_names_of_their_own():
    boards = [made(path) for path in DESCRIPTIONS]
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == 3
    assert {path.stem for path in DESCRIPTIONS} == {path.stem for path in GRAFANA.glob("dashboards/*.json")}


def test_the_json_is_what_the_description_makes(description):
    text = build.place_of(description).read_text()
    assert text == build.text_of(description), "python deploy/grafana/build.py, and commit what it writes"


def test_panels_have_numbers_and_places_of_their_own(description):
    panels = made(description)["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_a_table_s_columns_are_queries_and_labels_that_it_has(description):
    for panel in made(description)["panels"]:
        if panel["type"] == "table":
            named = panel["transformations"][1]["options"]["renameByName"]
            letters = {name[-1] for name in named if name.startswith("Value #")}
            assert letters <= {target["refId"] for target in panel["targets"]}
            labels = [name for name in named if not name.startswith("Value")]
            assert all(re.search(rf"\b({label})\b|build_info", str(panel["targets"])) for label in labels)


def targets(description):
    return [(panel, target) for panel in made(description)["panels"] for target in panel.get("targets", ())]


def test_no_panel_draws_a_line_for_each_of_thousands_of_servers(description):
    for panel, target in targets(description):
        if "{{server}}" in target.get("legendFormat", ""):
            assert re.match(r"(topk|bottomk)\(50, ", target["expr"]), panel["title"]


def test_what_vllm_says_is_shown_of_this_fleet_s_servers_alone(description):
    """Prometheus has the servers of all fleets under one scrape job."""
    for panel, target in targets(description):
        ours = target["expr"].count('and on (server) dispatcher_server_limit{job="$job"}')
        assert ours == len(re.findall(r"vllm:\w+", target["expr"])), panel["title"]


def test_all_servers_are_those_of_now_and_what_is_chosen_at_first():
    for description in DESCRIPTIONS:
        for variable in made(description)["templating"]["list"]:
            if variable.get("includeAll"):
                assert (variable["allValue"], variable["current"]["value"]) == (".*", ["$__all"])


def test_grafana_knows_every_field(description):
    models = optional("grafana_foundation_sdk.models.dashboard")
    encoder = optional("grafana_foundation_sdk.cog.encoder")
    board = made(description)
    back = json.loads(encoder.JSONEncoder().encode(models.Dashboard.from_json(board)))
    assert list(_lost(board, back)) == []


def _lost(ours, theirs, place=""):
    """What a round trip through Grafana's own types has dropped or changed."""
    if isinstance(ours, dict):
        for key, value in ours.items():
            if not isinstance(theirs, dict) or key not in theirs:
                yield f"{place}.{key}"
            else:
                yield from _lost(value, theirs[key], f"{place}.{key}")
    elif isinstance(ours, list):
        for number, value in enumerate(ours):
            there = isinstance(theirs, list) and number < len(theirs)
            yield from _lost(value, theirs[number] if there else None, f"{place}[{number}]")
    elif ours != theirs:
        yield f"{place}: {ours!r} became {theirs!r}"


def test_every_expression_parses_and_uses_variables_that_are_defined(description):
    promql = optional("promql_parser")
    board = made(description)
    defined = {f"${variable['name']}" for variable in board["templating"]["list"]}
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            used = set(re.findall(r"\$\w+", target["expr"]))
            assert used <= defined | {"$__rate_interval"}
            promql.parse(target["expr"].replace("$__rate_interval", "1m"))

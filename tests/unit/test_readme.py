"""The README and the operator's page say what the code says, and go on to do so."""

import ast
import importlib
import json
import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml
from prometheus_client import CollectorRegistry

from dispatcher.cli.commands import app
from dispatcher.cli.exits import Exit
from dispatcher.config import Config, KubernetesEntry, ServerEntry, load_config
from dispatcher.config.settings import setting_places
from dispatcher.errors import ConfigError
from dispatcher.ingest.scan import scan
from dispatcher.model import ErrorCode, Verdict
from dispatcher.pool.states import State
from dispatcher.request_line import ROUTES, Head, LineCode, parse_request
from dispatcher.telemetry.series import FleetFamilies, ServerFamilies
from dispatcher.testing import faults
from dispatcher.testing.presets import PRESETS
from dispatcher.testing.simulation import plan

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
COMMANDS = typer.main.get_command(app).commands


def section(title, text=README):
    """What stands under a heading, up to the next of its level or above."""
    level = len(title) - len(title.lstrip("#"))
    found = re.search(
        rf"^{re.escape(title)}.*?$(.*?)(?=^#{{1,{level}}} |\Z)", _without_code(text), re.MULTILINE | re.DOTALL
    )
    assert found, f"there is no section {title}"
    return found[1]


def rows(text, header):
    """The cells of the table that begins with `header`, without its rule."""
    after = text.split(f"\n| {header} |", 1)[1].split("\n", 2)[2]
    lines = re.match(r"(?:\|.*\n)+", after)[0].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def names(text, header):
    return [cells[0].strip("`") for cells in rows(text, header)]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def _without_code(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def known_options(command):
    return {option for parameter in COMMANDS[command].params for option in parameter.opts}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_commands_section_has_its_options_and_no_others(name):
    text = section(f"### `dispatcher {name}")
    table = rows(text, "option") if "| option |" in text else []
    told = {option for cells in table for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", cells[0])}
    assert told == {option for option in known_options(name) if option.startswith("-")}


def test_every_command_has_a_section():
    assert set(re.findall(r"^### `dispatcher ([\w-]+)", README, re.MULTILINE)) == set(COMMANDS)


def test_the_options_of_run_name_settings_that_exist():
    settings = [cells[1].strip("`") for cells in rows(section("### `dispatcher run"), "option")]
    assert {name for name in settings if name} <= {".".join(place) for place in setting_places()}


def test_command_lines_use_options_that_exist():
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("dispatcher ")]
    assert len(lines) > 3
    for line in lines:
        _, command, *arguments = shlex.split(line)
        assert {argument for argument in arguments if argument.startswith("-")} <= known_options(command)


def shown(value):
    """A default as the README writes it."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case tuple():
            return "`[]`"
        case dict():
            return "`{}`"
        case _:
            return str(value)


def test_every_setting_stands_there_with_its_default():
    defaults = {}
    for place in setting_places():
        value = Config()
        for name in place:
            value = getattr(value, name)
        defaults[".".join(place)] = shown(value)
    assert {cells[0].strip("`"): cells[1] for cells in rows(README, "setting")} == defaults


def test_every_field_of_a_servers_entry_stands_there_with_its_default():
    fields = {
        name: "" if field.is_required() else shown(field.default)
        for name, field in ServerEntry.model_fields.items()
    }
    assert {cells[0].strip("`"): cells[1] for cells in rows(README, "field")} == fields


def test_every_field_of_a_kubernetes_entry_stands_there_with_its_default():
    shared = ServerEntry.model_fields
    own = {
        name: shown(each.default) for name, each in KubernetesEntry.model_fields.items() if name not in shared
    }
    told = rows(section("## Settings"), "field of a Kubernetes entry")
    assert {cells[0].strip("`"): cells[1] for cells in told} == own


def test_every_field_of_a_fleets_group_stands_there_with_its_default():
    fields = {name: shown(field.default) for name, field in plan.ServerGroup.model_fields.items()}
    told = rows(section("### `dispatcher simulate"), "field of a `fleet` group")
    assert {cells[0].strip("`"): cells[1] for cells in told} == fields


def test_the_rest_of_a_plan_stands_there_with_its_defaults():
    text = " ".join(section("### `dispatcher simulate").split())
    job, lengths = plan.JobShape.model_fields, plan.TokenLengths.model_fields
    assert set(job) == {"rows", "prompt_tokens", "output_tokens", "poison_rows"}
    assert f"`poison_rows` ({job['poison_rows'].default})" in text
    assert f"`prompt_tokens` ({job['prompt_tokens'].default.mean:g})" in text
    assert f"`output_tokens` ({job['output_tokens'].default.mean:g})" in text
    assert set(lengths) == {"mean", "spread", "most"}
    assert f"`spread` ({lengths['spread'].default:g}," in text
    assert f"`most` ({lengths['most'].default:g})" in text


def test_the_plan_shown_can_be_rehearsed(tmp_path):
    (shown_file,) = [block for block in blocks("yaml") if block.startswith("# plan.yaml")]
    (tmp_path / "plan.yaml").write_text(shown_file)
    assert plan.read_plan(tmp_path / "plan.yaml").job.rows == 20_000


def test_every_error_code_stands_there():
    assert names(section("## Error codes"), "code") == sorted(ErrorCode, key=names(README, "code").index)
    assert len(names(README, "code")) == len(ErrorCode)


def test_every_code_of_a_refused_line_stands_there():
    listed = section("## Input").split("The codes:")[1].split("\n\n")[0]
    assert re.findall(r"`(\w+)`", listed) == [code.value for code in LineCode]


def test_every_route_stands_there():
    assert set(re.findall(r"`(/[\w/]+)`", section("## Input"))) == ROUTES


def test_every_exit_status_stands_there():
    assert [int(name) for name in names(section("## Commands"), "status")] == list(Exit)


def series():
    registry = CollectorRegistry()
    for family in (*vars(ServerFamilies(registry)).values(), *vars(FleetFamilies(registry)).values()):
        (metric,) = family.describe()
        suffix = "_total" if metric.type == "counter" else ""
        labels = f"{{{','.join(family._labelnames)}}}" if family._labelnames else ""
        yield f"{metric.name}{suffix}{labels}"


def test_every_series_stands_there_with_its_labels():
    assert set(names(README, "series")) == set(series())


def test_alerts_and_advice_name_series_that_exist():
    known = {name.split("{")[0] for name in series()}
    told = set(re.findall(r"dispatcher_[a-z_]+", README + OPERATIONS))
    ends = ("_bucket", "_count", "_sum")
    assert {name for name in told if name not in known and not name.endswith(ends)} == set()


def test_every_server_state_stands_there():
    assert names(section("## How servers"), "state") == [state.value for state in State]
    assert names(OPERATIONS, "state") == [state.value for state in State]


def test_every_verdict_that_is_given_stands_there():
    given = [verdict.value for verdict in Verdict if verdict is not Verdict.STALLED]  # no ending is judged so
    assert sorted(names(section("## How servers"), "verdict")) == sorted(given)


def test_every_fault_of_the_fake_server_stands_there_with_its_fields():
    kinds = {kind.__name__.lower(): set(kind.__struct_fields__) for kind in faults.Fault.__args__}
    told = {cells[0].strip("`"): set(re.findall(r"`(\w+)`", cells[1])) for cells in rows(README, "fault")}
    assert told == kinds
    values = {*faults.Spoilage, *faults.Ending}
    assert {str(value) for value in values} <= set(re.findall(r"`(\w+)`", section("## Fake server")))


def test_every_preset_and_every_way_to_match_of_the_fake_server_stands_there():
    listed = set(re.findall(r"`(\w+)`", section("## Fake server")))
    assert {*PRESETS, *faults.Match.__struct_fields__, "times"} <= listed


def test_every_orders_body_is_one_that_the_fake_server_takes():
    from dispatcher.testing.control import _decoded, _Order

    orders = re.findall(r"curl -d '(.*?)' \S+/fake/(\w+)", "".join(blocks("sh")))
    assert len(orders) == 3
    for body, path in orders:
        assert _decoded(body.encode(), _Order if path == "faults" else faults.Die)


def test_json_is_json_and_requests_are_requests():
    assert all(json.loads(block) for block in blocks("json"))
    lines = [line for block in blocks("jsonl") for line in block.splitlines()]
    assert len(lines) == 3
    assert all(isinstance(parse_request(line.encode()), Head) for line in lines)


def test_the_configuration_shown_can_be_loaded(tmp_path):
    (shown_file,) = [block for block in blocks("yaml") if block.startswith("# dispatcher.yaml")]
    path = tmp_path / "dispatcher.yaml"
    path.write_text(shown_file)
    assert load_config(path, {}, {}).pool.stall_s == 300
    assert all(yaml.safe_load(block) for block in blocks("yaml"))


def test_the_service_shown_can_be_loaded(tmp_path):
    (shown_file,) = [block for block in blocks("yaml") if block.startswith("# service.yaml")]
    (tmp_path / "service.yaml").write_text(shown_file)
    api = load_config(tmp_path / "service.yaml", {}, {}).api
    assert [(key.name, key.role) for key in api.keys] == [("ann", "admin"), ("bob", "user")]


def test_the_variables_shown_can_be_set_and_a_misspelt_one_is_refused():
    variables = dict(re.findall(r"`(DISPATCHER_\w+)=(\w+)`", README))
    assert load_config(None, {}, variables).pool.stall_s == 300
    with pytest.raises(ConfigError, match="did you mean"):
        load_config(None, {}, {"DISPATCHER_POOL__STAL_S": "300"})


def test_python_compiles_and_imports_what_there_is():
    for block in blocks("python"):
        imports = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
        assert imports
        for node in imports:
            module = importlib.import_module(node.module)
            assert module.__name__ in {"dispatcher", "openai"}
            assert {alias.name for alias in node.names} <= set(module.__all__)


def body(text):
    line = '{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":%s}}'
    return line.encode("utf-8", "surrogatepass") % text


ODD_BUT_ACCEPTED = {
    "byte order mark": b"\xef\xbb\xbf" + body(b'"x"') + b"\n",
    "CRLF": body(b'"x"') + b"\r\n",
    "blank lines": b"\n \t\r\n" + body(b'"x"') + b"\n\n",
    "no newline at the end": body(b'"x"'),
    "raw U+2028": body('"\u2028\u2029\u0085"'.encode()) + b"\n",
    r"`\u0000`": body(rb'"\u0000"') + b"\n",
    "lone surrogate escape": body(rb'"\ud83d"') + b"\n",
    "5 MB line": body(b'"' + b"x" * 5_000_000 + b'"') + b"\n",
    "key that repeats": body(b'"x","prompt":"y"') + b"\n",
}
ODD_AND_REFUSED = {
    "not UTF-8": (body(b'"\xff"'), LineCode.NOT_UTF8),
    "NaN": (body(b"NaN"), LineCode.NOT_JSON),
    "Infinity": (body(b"[1, -Infinity]"), LineCode.NOT_JSON),
    "more than 500 levels": (body(b"[" * 501 + b"]" * 501), LineCode.NESTED_TOO_DEEP),
    "lone surrogate in `custom_id`": (
        body(b'"x"').replace(b'"a"', rb'"\ud83d"'),
        LineCode.CUSTOM_ID_LONE_SURROGATE,
    ),
}


@pytest.mark.parametrize("oddity", ODD_BUT_ACCEPTED)
def test_an_oddity_of_the_table_is_accepted(oddity, tmp_path):
    assert oddity in section("## Input")
    path = tmp_path / "in.jsonl"
    path.write_bytes(ODD_BUT_ACCEPTED[oddity])
    report = scan(path, tmp_path, lambda _shards: None)
    assert (report.rows, report.rejected) == (1, 0)


@pytest.mark.parametrize("oddity", ODD_AND_REFUSED)
def test_an_oddity_of_the_table_is_refused(oddity):
    assert oddity in section("## Input")
    line, code = ODD_AND_REFUSED[oddity]
    assert parse_request(line).code is code


def test_links_lead_somewhere():
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", _without_code(README), re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]*)\)", README)) <= anchors
    paths = re.findall(r"`((?:docs/|\.ci/|LICENSE)[\w./-]*)`", README + OPERATIONS)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def logged_events():
    """The names of all events that the package logs, but for those made up of a server's state."""
    for path in sorted((ROOT / "dispatcher").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_log = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
            if is_log and node.func.attr in ("debug", "info", "warning", "error", "exception"):
                yield from _texts(node.args[0])


def _texts(node):
    parts = (node.body, node.orelse) if isinstance(node, ast.IfExp) else (node,)
    return [part.value for part in parts if isinstance(part, ast.Constant)]


def test_the_operators_page_has_every_event_that_is_logged():
    told = set(names(OPERATIONS, "event"))
    events = {*logged_events(), *(f"server_{state}" for state in State if state is not State.JOINING)}
    assert told == {event for event in events if not event.startswith("demo_")}

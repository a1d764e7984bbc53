"""`/openapi.json` says what the service does: its routes, what it takes and its limits, what it answers."""

import re
from dataclasses import fields

import msgspec
import pytest
from jobs import rows
from keyed_service import USER, keyed, registration
from services import serving

from dispatcher.api import dashboard, openai_batches, openai_files
from dispatcher.api import jobs as job_routes
from dispatcher.api.access import Access, access_to
from dispatcher.api.entries import EntryBody, UrlBody
from dispatcher.api.errors import TYPES
from dispatcher.api.fleet_picture import URGENCY
from dispatcher.api.jobs import JobChanges
from dispatcher.api.nodes import NodeList, NodeView
from dispatcher.api.openai_batches import NewBatch
from dispatcher.api.openapi import read_description
from dispatcher.api.registration import Deregistered, Registered
from dispatcher.api.scrape_targets import Target
from dispatcher.api.servers import ServerList, ServerView
from dispatcher.config.servers import LIMIT_MAX
from dispatcher.jobs.company import Presence
from dispatcher.jobs.life import Stage, shown
from dispatcher.jobs.view import JobView
from dispatcher.jobs.windows import window_s
from dispatcher.model import ErrorCode
from dispatcher.request_line import ROUTES

METHODS = {"get", "post", "patch", "delete"}
RECORDS = {
    "NewBatch": NewBatch,
    "JobChanges": JobChanges,
    "NewServer": EntryBody,
    "WhichServer": UrlBody,
    "Server": ServerView,
    "ServerList": ServerList,
    "Node": NodeView,
    "NodeList": NodeList,
    "Target": Target,
    "Registered": Registered,
    "Deregistered": Deregistered,
}


@pytest.fixture(scope="module")
def description():
    return read_description()


@pytest.fixture(scope="module")
def schemas(description):
    return description["components"]["schemas"]


def operations(description):
    for path, item in description["paths"].items():
        for method in METHODS & set(item):
            yield method.upper(), path, item[method]


def nodes(value):
    """Every object within a description."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes(inner)


async def test_every_route_is_described_and_nothing_else(tmp_path, description):
    async with keyed(tmp_path / "data", registration=registration()) as asking:
        status, served, _ = await asking.get("/openapi.json")
        routes = asking.application.router.routes()
        there = {(route.method, route.resource.canonical) for route in routes if route.method != "HEAD"}
    assert (status, served) == (200, description)
    described = [(method, path) for method, path, _ in operations(description)]
    assert sorted(described) == sorted(there)
    assert all(set(item) <= METHODS | {"parameters"} for item in description["paths"].values())


def test_a_description_is_whole(description):
    assert re.fullmatch(r"3\.1\.\d", description["openapi"])
    for node in nodes(description):
        if isinstance(reference := node.get("$ref"), str):
            found = description
            for name in reference.removeprefix("#/").split("/"):
                found = found[name]
    names = [each["operationId"] for _, _, each in operations(description) if "operationId" in each]
    assert len(names) == len(set(names))
    for method, path, each in operations(description):
        assert each["summary"], (method, path)
        named = {p["name"] for p in placed(description, path, each) if p["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", path))


def placed(description, path, operation):
    """The parameters of an operation, those of its path included."""
    for each in (*description["paths"][path].get("parameters", ()), *operation.get("parameters", ())):
        known = each.get("$ref", "").rpartition("/")[2]
        yield description["components"]["parameters"][known] if known else each


def test_who_may_call_a_route_is_told(description):
    secured = {Access.OPEN: [], Access.TOKEN: [{"registration": []}]}
    for method, path, each in operations(description):
        access = access_to(method, path)
        assert each.get("security", "as all") == secured.get(access, "as all"), (method, path)
        assert ("401" in each["responses"]) == (access is not Access.OPEN)
        assert access is not Access.ADMIN or "admins" in each["description"]


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_described_with_its_fields(schemas, name):
    told, known = schemas[name], {each.encode_name: each for each in msgspec.structs.fields(RECORDS[name])}
    assert set(told["properties"]) == set(known)
    answers = {"Server", "ServerList", "Node", "NodeList", "Target", "Registered", "Deregistered"}
    owed = set(known) if name in answers else {field for field, each in known.items() if each.required}
    assert set(told.get("required", ())) == owed
    strict = RECORDS[name].__struct_config__.forbid_unknown_fields
    assert (told.get("additionalProperties") is False) == strict


@pytest.mark.parametrize("name", ["NewBatch", "JobChanges"])
def test_the_limits_of_a_body_are_those_that_are_kept(schemas, name):
    _, known = msgspec.json.schema_components([RECORDS[name]])
    for field, kept in known[name]["properties"].items():
        told = schemas[name]["properties"][field]
        told = {**schemas.get(told.get("$ref", "").rpartition("/")[2], {}), **told}
        assert limits_of(told) == limits_of({**kept, **(kept.get("anyOf") or [{}])[0]}), field
        assert name == "JobChanges" or told.get("default") == kept.get("default"), field


def limits_of(schema):
    names = ("minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength")
    return {name: schema.get(name) for name in names}


def test_the_other_limits_are_those_of_the_code(description, schemas):
    metadata = schemas["Metadata"]
    assert metadata["maxProperties"] == openai_batches.METADATA_KEYS_MAX
    assert metadata["propertyNames"]["maxLength"] == openai_batches.KEY_CHARACTERS_MAX
    assert metadata["additionalProperties"]["maxLength"] == openai_batches.VALUE_CHARACTERS_MAX
    assert schemas["NewServer"]["properties"]["limit"]["maximum"] == LIMIT_MAX
    upload = description["paths"]["/v1/files"]["post"]["requestBody"]["content"]["multipart/form-data"]
    for each in (
        upload["schema"]["properties"]["expires_after[seconds]"],
        schemas["NewBatch"]["properties"]["output_expires_after"]["properties"]["seconds"],
    ):
        assert range(each["minimum"], each["maximum"] + 1) == openai_files.EXPIRES_S
    limits = {
        path: (each["schema"]["default"], each["schema"]["maximum"])
        for path in ("/v1/files", "/v1/batches", "/jobs")
        for each in description["paths"][path]["get"]["parameters"]
        if each["name"] == "limit"
    }
    assert limits == {
        "/v1/files": (openai_files.LIST_MAX, openai_files.LIST_MAX),
        "/v1/batches": (openai_batches.LIST_DEFAULT, openai_batches.LIST_MAX),
        "/jobs": (job_routes.LIST_DEFAULT, job_routes.LIST_MAX),
    }


def test_what_can_be_named_is_named_in_full(description, schemas):
    job = schemas["Job"]["properties"]
    assert set(job["stage"]["enum"]) == {stage.value for stage in Stage}
    assert set(schemas["Status"]["enum"]) == {shown(stage) for stage in Stage}
    assert set(job["errors"]["propertyNames"]["enum"]) == {code.value for code in ErrorCode}
    assert set(schemas["Route"]["enum"]) == ROUTES
    assert set(schemas["Server"]["properties"]["state"]["enum"]) == set(URGENCY)
    assert set(schemas["Node"]["properties"]["state"]["enum"]) == set(Presence)
    assert set(schemas["Error"]["properties"]["error"]["properties"]["type"]["enum"]) == {
        *TYPES.values(),
        "server_error",
    }
    window = schemas["NewBatch"]["properties"]["completion_window"]
    assert all(window_s(text) and re.search(window["pattern"], text) for text in window["examples"])
    assert not any(re.search(window["pattern"], text) for text in ("0h", "24", "1y", " 1h", "1234567s"))
    served = description["paths"]["/static/{name}"]["get"]["responses"]["200"]["content"]
    assert set(served) == set(dashboard.FILES.values())


def test_a_job_is_described_with_its_fields(schemas):
    own = {field.name for field in fields(JobView)} - {"details"}
    assert own < set(schemas["Job"]["properties"])


async def test_what_is_answered_is_what_is_described(tmp_path, server, schemas):
    async with serving(tmp_path / "data", server) as stage:
        ended = await stage.until_ended(await stage.submit(rows(2)))
        invalid = await stage.until_ended(await stage.submit(b"{}\n"))
        answers = {
            f"/v1/files/{ended.input_file_id}": "File",
            "/v1/files": "FilePage",
            f"/v1/batches/{ended.id}": "Batch",
            f"/v1/batches/{invalid.id}": "Batch",
            "/v1/batches": "BatchPage",
            f"/jobs/{ended.id}": "Job",
            f"/jobs/{invalid.id}": "Job",
            "/jobs": "JobPage",
            "/v1/models": "ModelList",
            "/servers": "ServerList",
            "/nodes": "NodeList",
            "/v1/files/file-none": "Error",
            "/jobs?limit=0": "Error",
        }
        for path, name in answers.items():
            _, answer = await stage.ask("GET", path)
            compare(answer, schemas[name], schemas, path)
        _, answer = await stage.ask("DELETE", f"/v1/files/{ended.input_file_id}")
        compare(answer, schemas["DeletedFile"], schemas, "deleted")
        _, answer = await stage.ask("DELETE", f"/jobs/{ended.id}")
        compare(answer, schemas["DeletedJob"], schemas, "deleted")


def compare(answer, schema, schemas, where):
    """Whether an answer has the described members and no others, all the way down."""
    schema = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
    if isinstance(answer, list):
        for item in answer:
            compare(item, schema["items"], schemas, f"{where}[]")
    if isinstance(answer, dict) and "properties" in schema:
        assert set(answer) == set(schema["properties"]) == set(schema["required"]), where
        for name, value in answer.items():
            compare(value, schema["properties"][name], schemas, f"{where}.{name}")


async def test_the_description_holds_nothing_of_this_service(tmp_path):
    async with keyed(tmp_path / "data", servers=["http://127.0.0.1:1"]) as asking:
        _, open_to_all, _ = await asking.get("/openapi.json")
        assert (await asking.get("/openapi.json", key=USER))[1] == open_to_all
        assert "127.0.0.1" not in str(open_to_all)

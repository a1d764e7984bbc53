"""Settings: which source wins, what is refused, and what is said about it."""

import json
import traceback

import pytest

from dispatcher.config import ServerEntry, load_config
from dispatcher.config.settings import setting_places
from dispatcher.errors import ConfigError


@pytest.fixture
def config_file(tmp_path):
    def write(text):
        path = tmp_path / "config.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def faults_of(path=None, overrides=None, environ=None):
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides or {}, environ or {})
    return {fault.where: fault.message for fault in caught.value.faults}


def test_without_any_source_the_documented_defaults_stand():
    config = load_config(None, {}, {})
    assert config.model_dump(mode="json") == {
        "servers": [],
        "api_key": None,
        "discovery": {"file": None, "dns": None, "kubernetes": None, "registration": None},
        "dispatch": {
            "max_attempts": 3,
            "request_timeout_s": None,
            "free_resends_max": 10,
            "hedge": True,
            "drain_s": 300.0,
        },
        "pool": {
            "limit": "auto",
            "probe_interval_s": 5.0,
            "probe_timeout_s": 10.0,
            "connect_timeout_s": 3.0,
            "scrape_interval_s": 5.0,
            "stall_s": 120.0,
            "deaths_max": 5,
            "readmit_backoff_min_s": 2.0,
            "readmit_backoff_max_s": 60.0,
            "wait_for_servers_s": None,
            "canary": True,
        },
        "queue": {"url": None, "shard_size": 256, "lease_s": 60.0},
        "results": {"sync_s": 1.0, "checkpoint_s": 30.0, "provenance": True},
        "storage": {
            "url": None,
            "directory": None,
            "files_kept_s": None,
            "journals_kept_s": None,
            "orphans_kept_s": 86_400.0,
        },
        "api": {
            "host": "127.0.0.1",
            "port": 8080,
            "keys": [],
            "live_reserve": 0.1,
            "upload_bytes_max": 20 * 2**30,
        },
        "telemetry": {
            "log_format": "console",
            "log_level": "info",
            "metrics_port": None,
            "metrics_host": "0.0.0.0",  # noqa: S104  # the documented default
            "log_prompts": False,
            "otlp_endpoint": None,
        },
        "run": {
            "output": None,
            "errors": None,
            "state_dir": None,
            "model": None,
            "model_override": None,
            "on_invalid": "fail",
            "workers": 1,
            "restart": False,
            "retry_failed": False,
            "keep_state": False,
            "quiet": False,
        },
        "annotate": {
            "prompt": None,
            "system": None,
            "messages_column": None,
            "image_columns": [],
            "labels": [],
            "answer_schema": None,
            "prefix": "answer",
            "max_tokens": None,
            "temperature": None,
            "top_p": None,
            "seed": None,
            "validate_retries": 3,
            "drop_invalid": False,
            "keep_reasoning": False,
            "confidence": False,
            "max_calls": 8,
            "extra_body": {},
            "id_column": None,
            "where": [],
            "limit": None,
            "columns": [],
            "input_format": None,
            "output_format": None,
            "steps": [],
        },
    }


def test_arguments_win_over_the_environment_over_the_file_setting_by_setting(config_file):
    path = config_file("pool: {stall_s: 1, probe_interval_s: 1, probe_timeout_s: 1}")
    environ = {"DISPATCHER_POOL__STALL_S": "2", "DISPATCHER_POOL__PROBE_INTERVAL_S": "2"}
    pool = load_config(path, {"pool": {"stall_s": 3}}, environ).pool
    assert (pool.stall_s, pool.probe_interval_s, pool.probe_timeout_s) == (3, 2, 1)


def test_an_argument_that_is_none_was_not_given(config_file):
    path = config_file("{run: {model: m}, queue: {shard_size: 7}}")
    config = load_config(path, {"run": {"model": None}, "queue": {"shard_size": None}, "api_key": None}, {})
    assert (config.run.model, config.queue.shard_size) == ("m", 7)


def test_null_in_a_higher_source_takes_back_what_a_lower_one_set(config_file):
    path = config_file("pool: {wait_for_servers_s: 60}")
    assert (
        load_config(path, {}, {"DISPATCHER_POOL__WAIT_FOR_SERVERS_S": "null"}).pool.wait_for_servers_s is None
    )
    assert load_config(config_file("run: {model: ~}"), {}, {}).run.model is None


CANARY = "must be true, false, or a mapping with messages and expect"


def test_every_fault_of_every_source_is_reported_together(config_file):
    path = config_file("pool:\n  stall_s: -1\n  canary: maybe\nqueue: {shard_size: 0}\n")
    faults = faults_of(path, {"dispatch": {"max_attempts": "many"}}, {"DISPATCHER_RESULTS__SYNC_S": "nan"})
    assert faults == {
        "dispatch.max_attempts": "must be a valid integer, got many (from arguments)",
        "pool.stall_s": f"must be greater than 0, got -1 (from {path}:2)",
        "pool.canary": f"{CANARY}, got maybe (from {path}:3)",
        "queue.shard_size": f"must be greater than or equal to 1, got 0 (from {path}:4)",
        "results.sync_s": "must be greater than 0, got nan (from DISPATCHER_RESULTS__SYNC_S)",
    }


def test_the_source_that_is_named_is_the_one_that_won(config_file):
    path = config_file("pool: {stall_s: 5}")
    faults = faults_of(path, {}, {"DISPATCHER_POOL__STALL_S": "-2"})
    assert faults == {"pool.stall_s": "must be greater than 0, got -2 (from DISPATCHER_POOL__STALL_S)"}


NUMBERS = [
    place for place in setting_places() if place[-1].endswith(("_s", "_size", "_max", "_attempts", "_port"))
]


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e300", "soon", True])
@pytest.mark.parametrize("place", NUMBERS, ids=".".join)
def test_every_number_is_finite_bounded_and_no_truth_value(place, value):
    section, name = place
    assert list(faults_of(overrides={section: {name: value}})) == [f"{section}.{name}"]


@pytest.mark.parametrize("value", ["0", "-3", "1.5", "65537", "many", True, "", None])
def test_a_pool_limit_is_auto_or_a_count_of_permits(config_file, value):
    path = config_file(f"pool: {{limit: {json.dumps(value)}}}")
    assert "auto or a whole number" in faults_of(path)["pool.limit"]


@pytest.mark.parametrize(("given", "expected"), [("auto", "auto"), ("64", 64), (64, 64)])
def test_a_pool_limit_means_the_same_from_every_source(given, expected):
    assert load_config(None, {"pool": {"limit": given}}, {}).pool.limit == expected
    assert load_config(None, {}, {"DISPATCHER_POOL__LIMIT": str(given)}).pool.limit == expected


def test_back_off_bounds_that_cross_are_refused_even_against_a_default(config_file):
    path = config_file("pool: {readmit_backoff_min_s: 90}")
    message = faults_of(path)["pool.readmit_backoff_max_s"]
    assert message == "must be at least readmit_backoff_min_s, which is 90, got 60.0"


def test_model_and_model_override_exclude_each_other():
    faults = faults_of(overrides={"run": {"model": "a", "model_override": "b"}})
    assert faults == {"run.model_override": "must not be set together with run.model, got b (from arguments)"}


@pytest.mark.parametrize(
    ("text", "where", "suggestion"),
    [
        ("pool: {stal_s: 1}", "pool.stal_s", "stall_s"),
        ("pol: {stall_s: 1}", "pol", "pool"),
        ("stall_s: 1", "stall_s", "pool.stall_s"),
        ("queue: {stall_s: 1}", "queue.stall_s", "pool.stall_s"),
        ("servers: [{url: 'http://a', apikey: k}]", "servers[0].apikey", "api_key"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(config_file, text, where, suggestion):
    message = faults_of(config_file(text))[where]
    assert message.startswith(f"is not a setting; did you mean {suggestion}?")


def test_an_unknown_key_that_resembles_nothing_gets_no_suggestion(config_file):
    path = config_file("zzz: 1")
    assert faults_of(path) == {"zzz": f"is not a setting (from {path}:1)"}


def test_an_unknown_variable_is_refused_because_it_would_do_nothing():
    faults = faults_of(environ={"DISPATCHER_POOL__STAL_S": "1", "DISPATCHER_POOL": "{}", "PATH": "/bin"})
    assert faults["DISPATCHER_POOL__STAL_S"] == "is not a setting; did you mean DISPATCHER_POOL__STALL_S?"
    assert faults.keys() == {"DISPATCHER_POOL__STAL_S", "DISPATCHER_POOL"}


def test_variables_of_other_uses_are_let_be():
    load_config(None, {}, {"DISPATCHER_URL": "http://x", "DISPATCHER_REQUIRE_SERVICES": "1"})


def test_the_variables_that_kubernetes_sets_beside_a_service_called_dispatcher_are_let_be():
    link = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "8080",
        "SERVICE_PORT_HTTP": "8080",
        "PORT": "tcp://10.0.0.1:8080",
        "PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "PORT_8080_TCP_PROTO": "tcp",
        "PORT_8080_TCP_PORT": "8080",
        "PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    names = [f"DISPATCHER_{owner}{name}" for owner in ("", "METRICS_") for name in link]
    load_config(None, {}, dict(zip(names, list(link.values()) * 2, strict=True)))
    assert "DISPATCHER_PORT" in faults_of(environ={"DISPATCHER_PORT": "8080"})
    assert "DISPATCHER_TELEMETRY__METRIC_PORT" in faults_of(
        environ={"DISPATCHER_TELEMETRY__METRIC_PORT": "tcp://1"}
    )


def test_an_empty_variable_is_not_set():
    assert load_config(None, {}, {"DISPATCHER_RUN__OUTPUT": "", "DISPATCHER_API_KEY": " "}).run.output is None


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("pool: {stall_s: 1", ":1", "is not valid YAML"),
        ("pool:\n\tstall_s: 1", ":2", "is not valid YAML"),
        ("a: 1\n---\nb: 2", ":2", "is not valid YAML: expected one document"),
        ("api_key: *sesame", ":1", "is not valid YAML: expected one document"),
        ("pool: {}\npool: {}", ":2", "pool is set twice"),
        ("api_key: !env KEY", ":1", "tags (such as !env) are not supported"),
        ("? [a]\n: 1", ":1", "a key must be plain text"),
        ("- a\n- b", "", "must be a mapping of settings"),
        ("just text", "", "must be a mapping of settings"),
        (b"\xff\xfe\x00", "", "is not UTF-8 text"),
        (b"a: \x00", "", "is not valid YAML"),
        ("[" * 500, "", "is nested too deeply"),
        ("&a [*a]", "", "is nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_read_as_settings_is_one_clear_fault(config_file, text, line, message):
    path = config_file(text)
    faults = faults_of(path)
    assert list(faults) == [f"{path}{line}"]
    assert faults[f"{path}{line}"].startswith(message)
    assert "sesame" not in str(faults)


def test_a_missing_file_is_a_fault_that_hides_no_other(tmp_path):
    path = tmp_path / "absent.yaml"
    faults = faults_of(path, {"queue": {"shard_size": 0}})
    assert faults[str(path)] == "cannot be read: No such file or directory"
    assert "queue.shard_size" in faults


@pytest.mark.parametrize("text", ["", "# nothing\n", "pool:\n", "pool: {}\n", "\ufeffpool: {}\n"])
def test_a_file_or_section_that_says_nothing_changes_nothing(config_file, text):
    assert load_config(config_file(text), {}, {}) == load_config(None, {}, {})


@pytest.mark.parametrize("value", ["4", "[a]", "text"])
def test_a_section_that_is_no_mapping_is_a_fault_even_where_another_source_sets_it(config_file, value):
    path = config_file(f"pool: {value}")
    faults = faults_of(path, {"pool": {"stall_s": 3}})
    assert faults == {"pool": f"must be a mapping of settings (from {path}:1)"}


def test_yaml_guesses_do_not_reach_settings(config_file):
    config = load_config(config_file("api_key: 0123\nrun: {model: 1e3, quiet: yes, output: no}"), {}, {})
    assert config.api_key.get_secret_value() == "0123"
    assert (config.run.model, config.run.quiet, str(config.run.output)) == ("1e3", True, "no")


@pytest.mark.parametrize("place", ["", "steps: [{name: a, extra_body: %s}]"])
def test_what_goes_into_requests_as_it_is_has_the_types_of_json(config_file, place):
    members = """{a: {b: false, c: "false", d: no, e: ~}, f: [1, 1.5, "1", x y], g: 'null'}"""
    line = place % members if place else f"extra_body: {members}"
    annotate = load_config(config_file(f"annotate:\n  {line}\n"), {}, {}).annotate
    found = annotate.steps[0].extra_body if place else annotate.extra_body
    assert found == {
        "a": {"b": False, "c": "false", "d": "no", "e": None},
        "f": [1, 1.5, "1", "x y"],
        "g": "null",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"n": 2}', "must not have n"),
        ('{"guided_json": {}}', "must not have guided_json"),
        ('{"messages": []}', "must not have messages"),
        ("{", "must be a JSON object"),
        ("[1]", "must be a mapping"),
    ],
)
def test_members_of_a_body_that_are_said_otherwise_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, {"annotate": {"extra_body": text}}, {})
    assert load_config(None, {"annotate": {"extra_body": '{"top_k": 3}'}}, {}).annotate.extra_body == {
        "top_k": 3
    }


@pytest.mark.parametrize(
    "text",
    [
        "http://a:1, http://gpu[01-02,04]:8000 http://[::1]:8000",
        '["http://a:1", "http://gpu[01-02,04]:8000", {"url": "http://[::1]:8000"}]',
    ],
)
def test_servers_in_one_text_are_parted_outside_of_brackets_or_are_json(text):
    config = load_config(None, {}, {"DISPATCHER_SERVERS": text})
    assert [entry.url for entry in config.servers] == [
        "http://a:1",
        "http://gpu[01-02,04]:8000",
        "http://[::1]:8000",
    ]


def test_a_list_of_servers_replaces_another_as_a_whole(config_file):
    path = config_file("servers: [http://a:1, {url: http://b:1, limit: 4}]")
    assert len(load_config(path, {}, {}).servers) == 2
    assert [entry.url for entry in load_config(path, {"servers": ["http://c:1"]}, {}).servers] == [
        "http://c:1"
    ]


@pytest.mark.parametrize(
    ("entry", "where", "message"),
    [
        ({"limit": 1}, "servers[0].url", "is missing"),
        ({"url": "http://a", "limit": 0}, "servers[0].limit", "must be greater than or equal to 1, got 0"),
        (
            {"url": "http://a", "headers": {"Content-Length": "1"}},
            "servers[0].headers",
            "must leave Content-",
        ),
        ({"url": "http://a", "headers": {"a b": "1"}}, "servers[0].headers", "must be named with letters"),
        (
            {"url": "http://a", "headers": {"A": "1", "a": "2"}},
            "servers[0].headers",
            "must name each header once",
        ),
        (
            {"url": "http://a", "headers": {"A": "1\r\nB: 2"}},
            "servers[0].headers.A",
            "must be printable ASCII",
        ),
        (
            {"url": "http://a", "api_key": "k", "headers": {"authorization": "x"}},
            "servers[0]",
            "must have either",
        ),
        (4, "servers[0]", "must be a mapping"),
    ],
)
def test_a_server_entry_that_could_not_be_used_is_refused(entry, where, message):
    assert faults_of(overrides={"servers": [entry]})[where].startswith(message)


SECRET = "hunter2"  # noqa: S105  # it is looked for, not used
LEAKS = [
    {"servers": [f"http://user:{SECRET}@host"]},
    {"servers": [f"http://host/?token={SECRET}"]},
    {"servers": [{"url": f"http://user:{SECRET}@host", "limit": -1, "apikey": SECRET}]},
    {"servers": [{"url": "http://a", "api_key": f"{SECRET} x"}]},
    {"servers": [{"url": "http://a", "api_key": [SECRET]}]},
    {"servers": [{"url": "http://a", "headers": {"X": f"{SECRET}\n"}}]},
    {"servers": [{"url": "http://a", "headers": SECRET}]},
    {"servers": [[SECRET]]},
    {"servers": f'[{{"url": "http://a", "api_key": "{SECRET}"'},
    {"servers": {"a": SECRET}},
    {"api_key": f"{SECRET} {SECRET}"},
    {"api_key": {"value": SECRET}},
    {"apikey": SECRET},
    {"pool": {"api_key": SECRET}},
    {"pool": SECRET},
]


@pytest.mark.parametrize("overrides", LEAKS, ids=str)
def test_no_fault_repeats_what_may_be_a_secret(overrides):
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides, {})
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_an_entry_made_without_the_loader_repeats_no_secret_either():
    with pytest.raises(ValueError, match="must not hold a user or password") as caught:
        ServerEntry(url=f"http://user:{SECRET}@host")
    assert SECRET not in str(caught.value)


def test_secrets_are_in_no_representation_and_no_dump():
    entry = {"url": "http://a", "api_key": SECRET, "headers": {"X-Team": SECRET}}
    config = load_config(None, {"servers": [entry]}, {"DISPATCHER_API_KEY": f"{SECRET}\n"})
    assert config.api_key.get_secret_value() == SECRET
    assert config.servers[0].headers["X-Team"].get_secret_value() == SECRET
    assert SECRET not in f"{config} {config!r} {config.model_dump()} {config.model_dump_json()}"


def test_settings_do_not_change_once_loaded():
    config = load_config(None, {}, {})
    with pytest.raises(ValueError, match="frozen"):
        config.pool.stall_s = 1

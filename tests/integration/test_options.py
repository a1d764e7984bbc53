"""Every option of `run` does what it says: each test here would fail if its option did nothing."""

import json

import pytest
import typer
from jobs import read, row, rows, sends

from dispatcher.cli.commands import app
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.faults import Hang, Match, Respond
from dispatcher.testing.presets import PRESETS

CONTEXT_LENGTH = PRESETS["context_length_400"]


async def test_errors_names_the_file_for_failures(cli, job, server, tmp_path):
    server.inject(CONTEXT_LENGTH, Match(text="row-00001"))
    done = await cli.run(*job.write(rows(3)).argv(server), "--errors", tmp_path / "bad.jsonl")
    assert done.status == 1
    assert [line["custom_id"] for line in read(tmp_path / "bad.jsonl")] == ["row-00001"]
    assert not job.errors.exists()


async def test_server_takes_urls_with_and_without_v1_and_ranges(cli, job, serve):
    first = await serve()
    second = await serve("127.0.0.2", first.port)
    third = await serve()
    job.write(rows(60))
    done = await cli.run(*job.argv(f"http://127.0.0.[1-2]:{first.port}", f"{third.url}/v1/"))
    assert done.status == 0, done.err
    assert all(sends(server) for server in (first, second, third))


async def test_servers_file_adds_the_servers_it_lists(cli, job, serve, tmp_path):
    flag, listed = await serve(), await serve()
    (tmp_path / "servers.txt").write_text(f"# ours\n{listed.url}\n")
    done = await cli.run(*job.write(rows(40)).argv(flag), "--servers-file", tmp_path / "servers.txt")
    assert done.status == 0, done.err
    assert sends(flag)
    assert sends(listed)


@pytest.mark.parametrize(
    ("option", "at_a", "at_b"),
    [("--model", {"row-00000", "row-00001"}, {"row-00002"}), ("--model-override", {"all"}, set())],
)
async def test_model_fills_in_and_model_override_replaces(cli, job, serve, option, at_a, at_b):
    a, b = await serve(models=("a",)), await serve(models=("b",))
    job.write([row(0, model=None), row(1, model=None), row(2, model="b")])
    done = await cli.run(*job.argv(a, b), option, "a")
    assert done.status == 0, done.err
    assert set(sends(a)) == (at_a if at_a != {"all"} else set(job.ids))
    assert set(sends(b)) == at_b
    answered = [line["response"]["body"]["model"] for line in read(job.output)]
    assert answered == (["a", "a", "b"] if at_b else ["a", "a", "a"])


@pytest.mark.parametrize("way", ["flag", "variable"])
async def test_the_api_key_is_sent_and_never_shown(cli, job, serve, tmp_path, way):
    key = "sk-very-secret-4711"
    server = await serve(api_key=key)
    server.inject(CONTEXT_LENGTH, Match(text="row-00001"))
    server.inject(Respond(401, f'{{"error":"Unauthorized: {key[:3]}"}}'), Match(text="row-00002"), times=1)
    flags, env = (["--api-key", key], None) if way == "flag" else ([], {"DISPATCHER_API_KEY": key})
    flags += ["--log-format", "json", "--keep-state"]
    readmit = {"DISPATCHER_POOL__READMIT_BACKOFF_MIN_S": "0.1", "DISPATCHER_TELEMETRY__LOG_LEVEL": "debug"}
    done = await cli.run(*job.write(rows(4)).argv(server), *flags, env={**readmit, **(env or {})})
    assert done.status == 1, done.err
    assert len(job.ids) == 3
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 5
    assert not [path for path in written if key.encode() in path.read_bytes()]


async def test_without_its_api_key_a_server_gets_no_row(cli, job, serve):
    server = await serve(api_key="right")
    done = await cli.run(
        *job.write(rows(2)).argv(server),
        "--api-key",
        "wrong",
        "--wait-for-servers",
        0.5,
        "--log-format",
        "json",
    )
    assert done.status == 3
    assert sends(server) == []
    assert "mismatched" in done.err
    assert "401" in done.err


@pytest.mark.parametrize("limit", [1, 3])
async def test_concurrency_fixes_what_is_in_flight_on_a_server(cli, job, serve, limit):
    server = await serve(engine=EngineSettings(decode_step_s=0.005), answer_tokens=2)
    done = await cli.run(*job.write(rows(20)).argv(server), "--concurrency", limit)
    assert done.status == 0
    assert server.peak_in_flight == limit


@pytest.mark.parametrize("attempts", [1, 2])
async def test_max_attempts_bounds_the_charged_attempts(cli, job, serve, attempts):
    servers = [await serve(), await serve()]
    for server in servers:
        server.inject(Respond(500, "{}"), Match(text="row-00002"))
    done = await cli.run(*job.write(rows(5)).argv(*servers), "--max-attempts", attempts)
    assert done.status == 1
    assert job.failed == {"row-00002": "server_error"}
    assert sends(*servers).count("row-00002") == attempts


async def test_request_timeout_bounds_an_attempt(cli, job, server):
    server.inject(Hang(), Match(text="row-00002"))
    done = await cli.run(
        *job.write(rows(5)).argv(server), "--request-timeout", 0.3, "--max-attempts", 1, timeout_s=10
    )
    assert done.status == 1
    assert job.failed == {"row-00002": "timeout"}


async def test_wait_for_servers_bounds_the_waiting(cli, job):
    done = await cli.run(
        *job.write(rows(2)).argv("http://127.0.0.1:9"), "--wait-for-servers", 1, timeout_s=10
    )
    assert done.status == 3
    assert "no server" in done.err.lower()
    assert job.state.exists()


async def test_shard_size_and_state_dir_and_keep_state(cli, job, server, tmp_path):
    job.state = tmp_path / "elsewhere"
    job.write(rows(25))
    done = await cli.run(*job.argv(server), "--shard-size", 10, "--state-dir", job.state, "--keep-state")
    assert done.status == 0
    assert len(job.journals()) == 3
    assert len(job.recorded()) == 25
    assert not (tmp_path / "out.jsonl.state").exists()


async def test_the_state_lies_beside_the_output_by_default(cli, job, server):
    await cli.run(*job.write(rows(2)).argv(server), "--keep-state")
    assert len(job.journals()) == 1


async def test_restart_throws_the_earlier_answers_away(cli, job, server):
    job.write(rows(4))
    assert (await cli.run(*job.argv(server), "--keep-state")).status == 0
    assert (await cli.run(*job.argv(server), "--restart")).status == 0
    assert sorted(sends(server)) == sorted(2 * job.ids)


async def test_retry_failed_sends_just_the_failed_rows_again(cli, job, server):
    fault = server.inject(CONTEXT_LENGTH, Match(text="row-00001"))
    assert (await cli.run(*job.write(rows(4)).argv(server))).status == 1
    server.withdraw(fault)
    again = await cli.run(*job.argv(server))
    assert (again.status, len(sends(server))) == (1, 4)
    retried = await cli.run(*job.argv(server), "--retry-failed")
    assert retried.status == 0, retried.err
    assert sends(server)[4:] == ["row-00001"]
    assert job.ids == ["row-00000", "row-00001", "row-00002", "row-00003"]
    assert not job.errors.exists()


async def test_on_invalid_fail_names_every_line_and_sends_nothing(cli, job, server):
    job.input.write_bytes(
        b"\n".join(
            [
                json.dumps(row(0)).encode(),
                b"\xff\xfe",
                b"{nope",
                b"[]",
                json.dumps({**row(1), "custom_id": ""}).encode(),
                json.dumps(row(0)).encode(),
                json.dumps({**row(2), "url": "/v1/files"}).encode(),
                json.dumps({**row(3), "method": "GET"}).encode(),
                json.dumps({**row(4), "body": "text"}).encode(),
                json.dumps(row(5, stream=True)).encode(),
            ]
        )
    )
    done = await cli.run(*job.argv(server))
    assert done.status == 2
    for number in range(2, 11):
        assert f"line {number}:" in done.err
    assert sends(server) == []
    assert not job.output.exists()
    assert not job.state.exists()


async def test_on_invalid_skip_runs_the_rest_and_keeps_the_rejected_lines(cli, job, server):
    job.input.write_text(json.dumps(row(0)) + "\n{nope\n" + json.dumps(row(1)) + "\n" + json.dumps(row(0)))
    done = await cli.run(*job.argv(server), "--on-invalid", "skip")
    assert done.status == 1
    assert job.ids == ["row-00000", "row-00001"]
    rejected = [(line["line"], line["custom_id"], line["code"]) for line in read(job.rejected)]
    assert rejected == [(2, None, "not_json"), (4, "row-00000", "custom_id_duplicate")]
    assert str(job.rejected) in done.err


async def test_flags_win_over_the_environment_and_that_over_the_file(cli, job, serve, tmp_path):
    server = await serve(engine=EngineSettings(decode_step_s=0.005), answer_tokens=2)
    config = tmp_path / "config.yaml"
    config.write_text(f"servers: [{server.url}]\npool: {{limit: 7}}\nrun: {{output: {job.output}}}\n")
    job.write(rows(30))
    peaks = []
    for env, flags in (
        ({}, []),
        ({"DISPATCHER_POOL__LIMIT": "5"}, []),
        ({"DISPATCHER_POOL__LIMIT": "5"}, [3]),
    ):
        limit = ["--concurrency", *flags] if flags else []
        before = len(server.requests)
        done = await cli.run("run", job.input, "--config", config, "--restart", *limit, env=env)
        assert done.status == 0, done.err
        peaks.append(1 + max(record.in_flight for record in server.requests[before:]))
    assert peaks == [7, 5, 3]


async def test_all_faults_of_a_configuration_are_reported_together(cli, job, server, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("pool:\n  stall_ss: 2\nqueue:\n  shard_size: 0\n")
    env = {"DISPATCHER_DISPATCH__DRAIN_S": "soon", "DISPATCHER_NONSENSE": "1"}
    flags = ["--config", config, "--max-attempts", 0, "--on-invalid", "maybe", "--log-format", "xml"]
    done = await cli.run(*job.write(rows(1)).argv(server), *flags, env=env)
    assert done.status == 2
    for named in (
        "pool.stall_ss",
        "did you mean",
        f"{config}:2",
        "queue.shard_size",
        "dispatch.drain_s",
        "DISPATCHER_NONSENSE",
        "dispatch.max_attempts",
        "run.on_invalid",
        "telemetry.log_format",
    ):
        assert named in done.err
    assert sends(server) == []
    assert not job.state.exists()


async def test_a_run_without_servers_or_output_is_a_usage_error(cli, job):
    job.write(rows(1))
    nowhere = await cli.run("run", job.input, "-o", job.output)
    assert nowhere.status == 2
    assert "--server" in nowhere.err
    unnamed = await cli.run("run", job.input, "--server", "http://127.0.0.1:9")
    assert unnamed.status == 2
    assert "-o" in unnamed.err
    unknown = await cli.run("run", job.input, "--no-such-option")
    assert unknown.status == 2


def test_every_option_is_tested():
    """In this folder or in e2e: by its name, in a command line."""
    tests = "".join(path.read_text() for path in _test_files())
    parameters = typer.main.get_command(app).commands["run"].params
    options = {option for parameter in parameters for option in parameter.opts if option.startswith("--")}
    assert len(options) > 20
    tested = {option for option in options if f'"{option}"' in tests}
    assert options - tested <= {"--output", "--server"}  # these two are in every command


def _test_files():
    from pathlib import Path

    here = Path(__file__).parent
    return sorted([*here.glob("test_*.py"), *here.parent.glob("e2e/test_*.py")])

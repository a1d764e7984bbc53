"""The commands to a running service, as a user types them: each a process, with the status it ends with."""

import gzip
import json
import re
import signal
import socket

import pytest
from commands import until
from jobs import lines, read, row, rows
from keyed_service import ADMIN, OTHER, SERVER_KEY, TOKEN, USER, keys, registration

PACED = {"answer_tokens": 60, "max_sequences": 8}


class Desk:
    """A service and the commands that are typed at it."""

    def __init__(self, cli, service, url):
        self.cli, self.service, self.url = cli, service, url

    async def type(self, *argv, key=USER, **env):
        given = {"DISPATCHER_URL": self.url, "DISPATCHER_API_KEY": key, **env}
        return await self.cli.run(*argv, env=given, timeout_s=60)

    async def start(self, *argv, key=USER, **env):
        return await self.cli.start(*argv, env={"DISPATCHER_URL": self.url, "DISPATCHER_API_KEY": key, **env})

    async def json(self, *argv, **options):
        done = await self.type(*argv, "--json", **options)
        return done.status, json.loads(done.out)

    async def submit(self, path, *options, **more):
        done = await self.type("submit", path, *options, **more)
        assert done.status == 0, done.err
        return done.out.strip()


@pytest.fixture
async def desk(cli, tmp_path):
    """Starts a service: `await desk(server, ...)`."""

    async def start(*servers, **registered):
        config = tmp_path / "service.json"
        settings = {
            "servers": [server.url for server in servers],
            "storage": {"url": str(tmp_path / "data")},
            "api": {"port": 0, "keys": keys()},
            "discovery": {"registration": registration(**registered)},
            "pool": {"probe_interval_s": 0.2},
            "telemetry": {"log_format": "json"},
        }
        config.write_text(json.dumps(settings))
        service = await cli.start("serve", "--config", config)
        said = await until(lambda: re.search(r'"serving".*', service.err) or not service.running)
        assert said is not True, service.err
        port = next(
            entry["port"]
            for entry in map(json.loads, service.err.splitlines())
            if entry["event"] == "serving"
        )
        return Desk(cli, service, f"http://127.0.0.1:{port}")

    return start


@pytest.fixture
def input_file(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(lines(rows(200)))
    return path


async def test_a_job_is_submitted_watched_fetched_and_verified(desk, server, input_file, tmp_path):
    desk = await desk(server)
    job = await desk.submit(input_file, "--metadata", "run=1", "--priority", "5", "--window", "2h")
    watched = await desk.type("watch", job)
    assert (watched.status, watched.err) == (0, "")
    assert watched.out.splitlines()[-1] == f"{job}  completed    200/200 rows, 100 %"
    status, shown = await desk.json("status", job)
    assert (status, shown["priority"], shown["metadata"], shown["owner"]) == (0, 5, {"run": "1"}, "bob")
    output = tmp_path / "out.jsonl"
    fetched = await desk.type("fetch", job, "-o", output)
    assert (fetched.status, fetched.out) == (
        0,
        f"completed: 200 of 200 rows succeeded\n  output {output}\n",
    )
    assert not (tmp_path / "out.errors.jsonl").exists()
    assert (await desk.type("verify", input_file, output)).status == 0
    status, seen = await desk.json("watch", job)
    assert (status, seen["status"]) == (0, "completed")


async def test_a_compressed_input_and_failed_rows(desk, server, tmp_path):
    packed = tmp_path / "in.jsonl.gz"
    bad = row(9, text="bad")
    bad["body"]["max_tokens"] = -1
    packed.write_bytes(gzip.compress(lines([*rows(5), bad]).encode()))
    desk = await desk(server)
    job = await desk.submit(packed)
    watched = await desk.type("watch", job)
    assert watched.status == 1, watched.out + watched.err
    assert re.search(r"invalid_request +1\n", watched.out)
    fetched = await desk.type("fetch", job, "-o", tmp_path / "out.jsonl", "--errors", tmp_path / "bad.jsonl")
    assert fetched.status == 1
    assert [line["custom_id"] for line in read(tmp_path / "bad.jsonl")] == ["row-00009"]
    assert len(read(tmp_path / "out.jsonl")) == 5


async def test_a_job_is_paused_resumed_and_cancelled(desk, serve, tmp_path):
    server = await serve(answer_tokens=200)
    source = tmp_path / "in.jsonl"
    source.write_text(lines(rows(20_000)))
    desk = await desk(server)
    job = await desk.submit(source)
    paused = await desk.type("pause", job)
    assert (paused.status, "  paused " in paused.out) == (0, True)
    assert (await desk.json("status", job))[1]["paused"] is True
    early = await desk.type("fetch", job, "-o", tmp_path / "out.jsonl")
    assert (early.status, (tmp_path / "out.jsonl").exists()) == (3, False)
    partial = await desk.type("fetch", job, "-o", tmp_path / "out.jsonl", "--partial")
    assert (partial.status, "it has not ended" in partial.out) == (3, True), partial.err
    assert not (tmp_path / "out.errors.jsonl").exists()
    assert (await desk.json("resume", job))[1]["paused"] is False
    watcher = await desk.start("watch", job)
    await until(lambda: list(tmp_path.glob("command-*.out"))[-1])
    assert (await desk.type("cancel", job)).status == 0
    assert (await watcher.wait()).status == 1
    fetched = await desk.type("fetch", job, "-o", tmp_path / "out.jsonl")
    assert (fetched.status, fetched.out.startswith("cancelled: ")) == (1, True)
    done = await desk.type("verify", source, tmp_path / "out.jsonl", tmp_path / "out.errors.jsonl")
    assert done.status == 0, done.out
    assert (await desk.type("pause", job)).status == 2
    assert (await desk.type("delete", job)).out == f"{job}  deleted\n"
    assert (await desk.type("status", job)).status == 2


async def test_an_input_that_cannot_be_run_is_refused_with_its_lines(desk, server, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text(lines([row(1), row(1)]))
    desk = await desk(server)
    job = await desk.submit(source)
    watched = await desk.type("watch", job)
    assert watched.status == 2
    assert "line 2" in watched.out
    assert (await desk.type("fetch", job, "-o", tmp_path / "out.jsonl")).status == 2
    source.write_text("{}\n")
    nothing = await desk.type("submit", source)
    assert (nothing.status, "the first row has no url" in nothing.err) == (2, True)


async def test_what_is_wrong_is_said_in_one_line_with_status_2(desk, server, input_file):
    desk = await desk(server)
    job = await desk.submit(input_file)
    for argv, key, part in (
        (("status",), "wrong", "the API key is not valid"),
        (("submit", input_file), "wrong", "the API key is not valid"),
        (("status", job), OTHER, "there is no job"),
        (("cancel", job), OTHER, "there is no job"),
        (("fetch", job, "-o", "x.jsonl"), OTHER, "there is no job"),
        (("status", "../servers"), USER, "is not the ID of a job"),
        (("submit", "absent.jsonl"), USER, "absent.jsonl"),
        (("submit", input_file, "--metadata", "novalue"), USER, "KEY=VALUE"),
        (("submit", input_file, "--window", "never"), USER, "completion_window"),
        (("submit", input_file, "--endpoint", "/nope"), USER, "endpoint must be one of"),
        (("servers", "drain", server.url), USER, "only an admin's key"),
        (("servers", "add", "ftp://x"), ADMIN, "must be http or https"),
    ):
        done = await desk.type(*argv, key=key)
        assert (done.status, done.out) == (2, ""), (argv, done)
        assert part in done.err, (argv, done.err)
        assert "Traceback" not in done.err


async def test_a_service_that_is_not_there_is_named(cli):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    for argv in (("status",), ("servers", "list")):
        done = await cli.run(*argv, "--url", url)
        assert (done.status, f"{url} cannot be reached" in done.err) == (2, True), done.err


async def test_servers_are_listed_added_drained_undrained_and_removed(desk, serve):
    server = await serve(api_key=SERVER_KEY)
    desk = await desk()
    status, answer = await desk.json(
        "servers", "add", server.url, "--limit", "3", key=ADMIN, DISPATCHER_SERVER_API_KEY=SERVER_KEY
    )
    assert (status, answer["data"][0]["url"]) == (0, server.url)
    for _ in range(20):
        if " active " in (listed := await desk.type("servers", "list")).out:
            break
    assert re.match(rf"{server.url}  active +0/3 +0 rows  verified\n", listed.out)
    for command, said in (("drain", "drained"), ("undrain", "undrained"), ("remove", "removed")):
        done = await desk.type("servers", command, server.url, key=ADMIN)
        assert (done.status, done.out) == (0, f"{said} {server.url}\n")
    assert (await desk.json("servers", "list")) == (0, {"object": "list", "data": []})


async def test_the_nodes_of_a_service_are_shown(desk, server):
    desk = await desk(server)
    done = await desk.type("nodes")
    assert done.status == 0, done.err
    assert re.fullmatch(
        r"\S+ \d+  active +0 in flight +0 shards +0 jobs +0\.00 rows/s  dispatcher \S+\n", done.out
    ), done.out
    status, answer = await desk.json("nodes")
    (node,) = answer["data"]
    assert (status, node["pid"], node["state"]) == (0, desk.service.pid, "active")


async def test_a_server_registers_itself_is_used_and_leaves_at_a_signal(desk, server, input_file):
    desk = await desk()
    url = server.url
    registrar = await desk.start(
        "register", "--server", url, "--log-format", "json", DISPATCHER_REGISTRATION_TOKEN=TOKEN
    )
    await until(lambda: '"registered"' in registrar.err)
    assert (await desk.type("watch", await desk.submit(input_file))).status == 0
    (seen,) = (await desk.json("servers", "list"))[1]["data"]
    assert (seen["url"], seen["source"], seen["succeeded"] >= 200) == (url, "registered", True)
    registrar.send(signal.SIGTERM)
    assert (await registrar.wait()).status == 0
    assert (await desk.json("servers", "list"))[1]["data"] == []
    assert TOKEN not in registrar.err


async def test_a_server_that_may_not_register_is_told_why(desk, server):
    desk = await desk(networks=["10.0.0.0/8"])
    for token, part in ((TOKEN, "no address within"), (ADMIN, "token is not valid")):
        done = await desk.type("register", "--server", server.url, DISPATCHER_REGISTRATION_TOKEN=token)
        assert (done.status, part in done.err) == (2, True), done.err


async def test_a_made_key_opens_a_service(cli, tmp_path):
    made = await cli.run("key", "eve", "--role", "admin")
    assert made.status == 0
    entry, key = made.err, made.out.strip()
    assert key not in entry
    (tmp_path / "c.yaml").write_text(f"{entry}  port: 0\nstorage: {{url: {tmp_path / 'data'}}}\n")
    service = await cli.start("serve", "--config", tmp_path / "c.yaml")
    found = await until(lambda: re.search(r"port=(\d+)", service.err) or not service.running)
    assert found is not True, service.err
    url = f"http://127.0.0.1:{found[1]}"
    assert (await cli.run("servers", "list", "--url", url, "--api-key", key)).status == 0
    assert (await cli.run("servers", "list", "--url", url)).status == 2


async def test_a_made_token_is_an_entry_of_the_configuration(cli):
    made = await cli.run("key", "nodes", "--for-servers")
    assert (made.status, made.out[:4], "registration:" in made.err) == (0, "reg-", True)
    assert (await cli.run("key", "not a name")).status == 2

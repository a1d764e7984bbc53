"""One `dispatcher run`, from the command to the files."""

from commands import Commands
from jobs import CHAT, COMPLETIONS, read, row, rows, sends

from dispatcher.testing.faults import Match, Respond
from dispatcher.testing.presets import PRESETS


async def test_every_row_is_answered_in_order_in_the_format_of_openai(cli, job, serve):
    servers = [await serve(), await serve()]
    job.write(rows(40))
    done = await cli.run(*job.argv(*servers), "--shard-size", 7)
    assert done.status == 0, done.err
    assert job.ids == [request["custom_id"] for request in rows(40)]
    assert sorted(sends(*servers)) == job.ids
    first = read(job.output)[0]
    assert first["error"] is None
    assert first["response"]["status_code"] == 200
    assert first["response"]["request_id"]
    assert first["id"]
    assert first["response"]["body"]["choices"][0]["finish_reason"]
    assert first["provenance"]["server"] in {server.url for server in servers}
    assert not job.errors.exists()
    assert not job.state.exists()


async def test_an_interpreter_of_its_own_does_the_same(job, server, tmp_path):
    async with Commands(tmp_path) as cli:
        done = await cli.run(*job.write(rows(3)).argv(server))
    assert done.status == 0
    assert len(job.ids) == 3


async def test_mixed_routes_are_all_answered(cli, job, server):
    urls = [CHAT, COMPLETIONS, "/v1/embeddings", "/v1/responses", "/tokenize"]
    extra = [
        {"custom_id": "score", "url": "/v1/score", "body": {"text_1": "a", "text_2": "b"}},
        {"custom_id": "rerank", "url": "/v1/rerank", "body": {"query": "a", "documents": ["b"]}},
        {"custom_id": "pooling", "url": "/pooling", "body": {"input": "a"}},
        {"custom_id": "classify", "url": "/classify", "body": {"input": "a"}},
    ]
    requests = [row(number, url) for number, url in enumerate(urls)]
    requests += [{**request, "method": "POST"} for request in extra]
    done = await cli.run(*job.write(requests).argv(server), "--model", "fake-model")
    assert done.status == 0, done.err
    assert job.ids == [request["custom_id"] for request in requests]


async def test_a_finished_run_with_failed_rows_ends_with_1_and_a_histogram(cli, job, server):
    server.inject(PRESETS["context_length_400"], Match(text="row-00002"))
    server.inject(Respond(400, '{"error":{"message":"no","param":"temperature"}}'), Match(text="row-00003"))
    done = await cli.run(*job.write(rows(6)).argv(server))
    assert done.status == 1
    assert job.failed == {"row-00002": "context_length", "row-00003": "invalid_request"}
    assert job.ids == ["row-00000", "row-00001", "row-00004", "row-00005"]
    assert "4 of 6 rows succeeded, 2 failed" in done.err
    assert [line.split() for line in done.err.splitlines() if "context_length" in line] == [
        ["context_length", "1"]
    ]
    assert "--retry-failed" in done.err


async def test_the_summary_tells_rows_tokens_time_and_each_servers_share(cli, job, serve):
    servers = [await serve(answer_tokens=3), await serve(answer_tokens=3)]
    done = await cli.run(*job.write(rows(30)).argv(*servers))
    assert "30 of 30 rows succeeded, 0 failed" in done.err
    assert "generated tokens" in done.err
    for server in servers:
        (line,) = [line for line in done.err.splitlines() if line.strip().startswith(server.url)]
        assert f"{len(sends(server))} rows" in line


async def test_json_logs_are_one_object_a_line_and_end_with_the_figures(cli, job, server):
    done = await cli.run(*job.write(rows(5)).argv(server), "--log-format", "json")
    (finished,) = done.named("run_finished")
    assert (finished["rows"], finished["succeeded"], finished["exit_code"]) == (5, 5, 0)
    assert finished["by_server"] == {server.url: 5}
    assert finished["completion_tokens"] > 0


async def test_a_quiet_run_says_nothing(cli, job, server):
    done = await cli.run(*job.write(rows(5)).argv(server), "--quiet")
    assert (done.status, done.out, done.err) == (0, "", "")


async def test_check_counts_rows_and_names_faults(cli, job):
    job.write([*rows(2), row(2, COMPLETIONS), row(0)])
    done = await cli.run("check", job.input)
    assert done.status == 2
    assert CHAT in done.out
    assert COMPLETIONS in done.out
    assert "line 4" in done.err


async def test_verify_proves_a_run_and_names_what_is_wrong(cli, job, server):
    job.write(rows(6))
    server.inject(PRESETS["context_length_400"], Match(text="row-00002"))
    assert (await cli.run(*job.argv(server))).status == 1
    proven = await cli.run("verify", job.input, job.output, job.errors)
    assert proven.status == 0
    assert "each has exactly one outcome" in proven.out
    kept = job.output.read_text().splitlines(keepends=True)
    job.output.write_text("".join([*kept[:2], *kept[3:], kept[0]]))
    disproved = await cli.run("verify", job.input, job.output, job.errors)
    assert disproved.status == 1
    assert "row-00003" in disproved.out
    assert "row-00000" in disproved.out

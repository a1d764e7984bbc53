"""F1 to F15: failures from the field, each on real HTTP. The stage checks every run's promises."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections import Counter

import pytest
from failure_stage import PROBE_S, STALL_S, fleet, line, rows, sends, until

from dispatcher.errors import InputError
from dispatcher.testing import (
    Die,
    Drop,
    EngineSettings,
    FakeServer,
    FakeServerSettings,
    Freeze,
    Hang,
    Match,
    Respond,
    Slow,
    Spoil,
    Spoilage,
    presets,
)
from dispatcher.testing.faults import Ending
from dispatcher.testing.refusals import ErrorShape

pytestmark = pytest.mark.timeout(90)
ENGINE = EngineSettings(max_sequences=16, decode_step_s=0.005)
ROW = "row-"


async def test_f1_a_hung_server_with_green_health_is_evicted_and_not_readmitted_on_health_alone(stage):
    async with fleet(2, FakeServerSettings(engine=ENGINE)) as (hung, fine):
        hung.inject(Freeze(), Match(after=20), times=1)
        frozen_at = []

        async def note(job):
            await until(lambda: hung.in_flight and len(hung.requests) >= 21)
            frozen_at.append(asyncio.get_running_loop().time())

        result = await stage.run([hung, fine], rows(200), weather=note, pool={"limit": 16})
        assert len(result.successes) == 200
        assert result.evictions(hung) == 1
        assert result.evicted_at(hung) - frozen_at[0] <= STALL_S + 1.0 + 3 * PROBE_S
        after = result.states(hung)[result.states(hung).index("evicted") :]
        assert "active" not in after
        again = {row: count for row, count in sends(hung, fine).items() if count > 1}
        assert len(again) <= 16
        assert max(again.values(), default=1) == 2


@pytest.mark.parametrize("health", [Slow(1.5), Slow(5.0), Hang()])
async def test_f2_slow_health_evicts_nobody_while_completions_go_on(stage, health):
    settings = FakeServerSettings(engine=EngineSettings(max_sequences=8, decode_step_s=0.02))
    async with fleet(2, settings) as servers:

        async def spoil_health(job):
            await until(lambda: job.snapshot().done.succeeded >= 10)
            for server in servers:
                server.inject(health, Match(route="/health"))

        result = await stage.run(servers, rows(160), weather=spoil_health, pool={"limit": 8})
        assert len(result.successes) == 160
        assert all(result.evictions(server) == 0 for server in servers)
        assert all(server.disconnects == 0 for server in servers)
        assert max(sends(*servers).values()) == 1


@pytest.mark.parametrize("ending", [Ending.EMPTY, Ending.TEXT, Ending.ENGINE_CORE, Ending.RESET])
async def test_f3_a_server_that_dies_with_16_in_flight_costs_one_eviction_and_16_resends(stage, ending):
    async with fleet(2, FakeServerSettings(engine=ENGINE)) as (dying, fine):

        async def kill(job):
            await until(lambda: dying.in_flight >= 16)
            await dying.die(Die(seconds=1.0, ending=ending))

        result = await stage.run([dying, fine], rows(400), weather=kill, pool={"limit": 16})
        assert len(result.successes) == 400
        assert result.evictions(dying) == 1
        again = [row for row, count in sends(dying, fine).items() if count > 1]
        assert len(again) <= 16 + 5, "what it held, and the doubts that it takes to suspect it"
        assert result.states(dying)[-1] == "active" or "verifying" in result.states(dying)
        limits = [look.limit for look in result.looks(dying) if look.state == "active"]
        assert min(limits) <= 8, "it came back with a ramp"


@pytest.mark.parametrize("how", [Spoilage.STREAM_ERROR, Spoilage.STREAM_END, Spoilage.CUT, Spoilage.GARBAGE])
async def test_f4_half_an_answer_is_retried_and_never_a_result(stage, how):
    async with fleet(2) as servers:
        for server in servers:
            for number in range(0, 20, 2):
                server.inject(Spoil(how), Match(text=f"row-{number} "), times=1)
        result = await stage.run(servers, rows(20))
        assert len(result.successes) == 20
        choices = [each["response"]["body"]["choices"][0] for each in result.successes.values()]
        finished = [choice["finish_reason"] for choice in choices]
        assert set(finished) <= {"stop", "length"}


async def test_f5_rows_that_are_too_long_fail_after_one_send_and_evict_nobody(stage):
    shapes = [presets.context_length(ErrorShape.NESTED), presets.context_length(ErrorShape.FLAT)]
    wordings = [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "The decoder prompt (length 9000) is longer than the maximum model length of 8192. Make sure that",
    ]
    shapes += [
        Respond(400, json.dumps({"object": "error", "message": text, "type": "BadRequestError", "code": 400}))
        for text in wordings
    ]
    async with fleet(2) as servers:
        bad = [number for number in range(200) if number < 50 or number % 5 in (0, 1)]
        for server in servers:
            for number in bad:
                server.inject(shapes[number % len(shapes)], Match(text=f"row-{number} "))
        result = await stage.run(servers, rows(200))
        assert set(result.errors) == {f"row-{number}" for number in bad}
        assert {result.code(row) for row in result.errors} == {"context_length"}
        assert all(sends(*servers)[row] == 1 for row in result.errors)
        assert all(result.evictions(server) == 0 for server in servers)


def _named(death) -> str:
    return death.ending.value if isinstance(death, Die) else "hang"


DEATHS = [
    Die(seconds=2.0, ending=Ending.RESET, linger_s=0),
    Die(seconds=1.0, ending=Ending.ENGINE_CORE),
    Die(seconds=1.0, ending=Ending.EMPTY),
    Die(seconds=1.0, ending=Ending.TEXT, linger_s=0),
    Freeze(seconds=4.0),
]


@pytest.mark.parametrize(
    ("death", "count"),
    # Of two servers only one may be evicted for hanging within a minute: there it takes that much longer.
    [(death, count) for death in DEATHS for count in (2, 4) if count == 4 or not isinstance(death, Freeze)],
    ids=lambda value: f"{value} servers" if isinstance(value, int) else _named(value),
)
async def test_f6_a_poison_row_is_found_after_two_deaths_and_a_resume_does_not_send_it(stage, death, count):
    async with fleet(count, FakeServerSettings(engine=ENGINE)) as servers:
        for server in servers:
            server.inject(death, Match(text="row-200 "))
        result = await stage.run(servers, rows(400), pool={"limit": 16})
        assert {row: result.code(row) for row in result.errors} == {"row-200": "poison"}
        assert len(result.successes) == 399
        deaths = sends(*servers)["row-200"]
        assert deaths == 2
        assert sum(result.evictions(server) for server in servers) <= deaths
        again = await stage.run(servers, None, pool={"limit": 16})
        assert again.summary.sent_nothing
        assert sends(*servers)["row-200"] == deaths


async def test_f6_two_poison_rows_are_both_found_and_never_is_the_whole_fleet_down(stage):
    async with fleet(4, FakeServerSettings(engine=ENGINE)) as servers:
        for server in servers:
            for row in (20, 380):
                server.inject(DEATHS[0], Match(text=f"row-{row} "))
        result = await stage.run(servers, rows(400), pool={"limit": 16})
        assert {row: result.code(row) for row in result.errors} == {"row-20": "poison", "row-380": "poison"}
        assert len(result.successes) == 398
        assert max(sends(*servers)[row] for row in result.errors) <= 3
        assert any(view.state == "active" for view in result.summary.snapshot.servers)


async def test_f6_a_poison_row_that_is_tried_again_has_a_fresh_start(stage):
    async with fleet(2, FakeServerSettings(engine=ENGINE)) as servers:
        faults = [server.inject(DEATHS[0], Match(text="row-20 ")) for server in servers]
        result = await stage.run(servers, rows(60), pool={"limit": 8})
        assert result.code("row-20") == "poison"
        for server, fault in zip(servers, faults, strict=True):
            server.withdraw(fault)
        again = await stage.run(servers, None, pool={"limit": 8}, run={"retry_failed": True})
        assert set(again.successes) == {f"row-{number}" for number in range(60)}


async def test_f6_deaths_survive_a_kill_of_the_dispatcher_between_the_first_and_the_second(stage):
    async with fleet(2, FakeServerSettings(engine=ENGINE)) as servers:
        for server, down_s in zip(servers, (20.0, 1.0), strict=True):
            server.inject(Die(seconds=down_s, ending=Ending.RESET, linger_s=0), Match(text="row-0 "))
        stage.input.write_text(rows(400))
        settings = stage.directory / "settings.yaml"
        settings.write_text("pool: {limit: 1, readmit_backoff_min_s: 0.2}\nresults: {sync_s: 0.05}\n")
        command = [sys.executable, "-m", "dispatcher", "run", str(stage.input), "-o", str(stage.output)]
        process = await asyncio.create_subprocess_exec(
            *command, "--server", servers[0].url, "--config", str(settings), "--quiet"
        )
        journal = await _first_death(stage)
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        assert sends(*servers)["row-0"] == 1, "killed between the deaths"
        assert b"\tdeath\t" in journal.read_bytes()
        result = await stage.run(servers, None, pool={"limit": 4})
        assert {row: result.code(row) for row in result.errors} == {"row-0": "poison"}
        assert sends(*servers)["row-0"] == 2


async def _first_death(stage):
    """The journal that remembers the first death, as soon as there is one. Fails after ten seconds."""
    async with asyncio.timeout(10):
        while True:
            for journal in (stage.directory / "out.jsonl.state").rglob("*.journal"):
                if b"\tdeath\t" in journal.read_bytes():
                    return journal
            await asyncio.sleep(0.005)


async def test_f7_rows_that_always_give_500_fail_after_three_attempts_and_nan_becomes_strict_json(stage):
    async with fleet(3) as servers:
        for server in servers:
            for number in range(20):
                server.inject(presets.TEXT_500, Match(text=f"row-{number} "))
            for number in range(20, 40):
                server.inject(Spoil(Spoilage.BARE_NAN), Match(text=f"row-{number} "))
        lines = [line(number, logprobs=True) for number in range(120)]
        result = await stage.run(servers, "\n".join(lines))
        assert set(result.errors) == {f"row-{number}" for number in range(20)}
        assert {result.code(row) for row in result.errors} == {"server_error"}
        for row in result.errors:
            assert sends(*servers)[row] == 3
            assert sum(1 for server in servers if sends(server)[row]) >= 2
        assert all(result.evictions(server) == 0 for server in servers)
        assert {f"row-{number}" for number in range(20, 40)} <= set(result.successes)


async def test_f8_odd_bytes_in_the_input_are_treated_row_by_row(stage):
    odd = {
        1: "raw \u2028 \u2029 \u0085 inside",
        2: "an escaped \u0000 zero",
        3: "x" * 5_000_000,
    }
    lines = [line(0), *(line(number, content=f"row-{number} {text}") for number, text in odd.items())]
    lines[1] = json.dumps(json.loads(lines[1]), ensure_ascii=False)
    encoding = {"message": "TextEncodeInput must be Union[...]", "type": "BadRequestError", "param": None}
    surrogate = line(4, content="row-4 lone SURROGATE").replace("SURROGATE", "\\ud83d")
    good = ["\ufeff" + lines[0], *lines[1:], surrogate, "", "   ", line(5)]
    async with fleet(1, FakeServerSettings(max_model_len=10_000_000)) as servers:
        for each in servers:
            each.inject(
                Respond(400, json.dumps({"error": encoding})),
                Match(text="\\ud83d"),
            )
        result = await stage.run(servers, "\r\n".join(good))
        assert set(result.successes) == {f"row-{number}" for number in (0, 1, 2, 3, 5)}
        assert result.code("row-4") == "invalid_request"
        assert sends(*servers)["row-3"] == 1
        bad = "\n".join([line(0), line(1)]).encode() + b'\n{"custom_id": "row-2\xff"}\n'
        with pytest.raises(InputError, match="line 3"):
            await stage.run(servers, bad, run={"restart": True})


@pytest.mark.parametrize("share", [0.3, 1.0])
async def test_f9_stale_connections_cost_nothing(stage, share):
    settings = FakeServerSettings(engine=EngineSettings(max_sequences=8, decode_step_s=0.001))
    async with fleet(1, settings) as (server,):
        server.inject(Drop(), Match(text=ROW, reused=True, probability=share, seed=7))
        result = await stage.run([server], rows(200), pool={"limit": 4})
        assert len(result.successes) == 200
        assert result.evictions(server) == 0
        assert {result.attempts(row) for row in result.successes} == {1}


async def test_f10_rows_that_never_answer_end_as_timeouts_with_a_new_id_for_each_send(stage):
    async with fleet(2) as servers:
        for server in servers:
            for number in range(10):
                server.inject(Hang(), Match(text=f"row-{number} "))
        result = await stage.run(
            servers, rows(60), dispatch={"request_timeout_s": 1.0}, pool={"stall_s": 30.0}
        )
        assert set(result.errors) == {f"row-{number}" for number in range(10)}
        assert {result.code(row) for row in result.errors} == {"timeout"}
        assert all(sends(*servers)[row] == 3 for row in result.errors)
        ids = [record.request_id for server in servers for record in server.requests if record.marker]
        assert len(ids) == len(set(ids))
        assert sum(server.disconnects for server in servers) == 30
        assert all(server.in_flight == 0 for server in servers)


@pytest.mark.parametrize("spares", ["nothing", "the canary"])
async def test_f11_a_fast_failing_server_is_not_fed(stage, spares):
    async with fleet(3) as (bad, *good):
        bad.inject(presets.TEXT_500, Match(text=ROW if spares == "the canary" else None))
        for server in good:
            server.inject(Slow(0.5))
        back_off = {"readmit_backoff_min_s": 2, "readmit_backoff_max_s": 60}  # the defaults
        result = await stage.run([bad, *good], rows(500), pool=back_off)
        assert len(result.successes) == 500
        assert sum(sends(bad).values()) <= 20
        shares = [sum(sends(server).values()) for server in good]
        assert max(shares) <= 1.2 * min(shares)


async def test_f12_an_overloaded_server_is_cut_and_a_meshed_out_one_evicted(stage):
    settings = FakeServerSettings(engine=EngineSettings(max_sequences=8, decode_step_s=0.004))
    async with fleet(2, settings) as (busy, meshed):
        busy.inject(presets.queue_full(503, retry_after_s=1), Match(in_flight_min=8))
        meshed.inject(presets.MESH_503)
        meshed.inject(presets.MESH_503, Match(route="/health"))
        result = await stage.run([busy, meshed], rows(400))
        assert len(result.successes) == 400
        assert result.evictions(busy) == 0
        assert "active" not in result.states(meshed)[1:] or result.evictions(meshed) >= 1
        late = [look.limit for look in result.looks(busy)][-100:]
        assert 4 <= sum(late) / len(late) <= 14


@pytest.mark.parametrize("tail", ["partial", "cut", "no newline", "blank"])
async def test_f13_a_torn_journal_costs_only_the_torn_row(stage, tail):
    async with fleet(1) as servers:
        await stage.run(servers, rows(50))
        journal = next((stage.directory / "out.jsonl.state").rglob("*.journal"))
        whole = journal.read_bytes().splitlines(keepends=True)
        kept = whole[:30]
        journal.write_bytes(b"".join(kept) + _torn(whole[30], tail))
        await _reopen(stage)
        before = sends(*servers)
        result = await stage.run(servers, None)
        assert len(result.successes) == 50
        sent_again = sum((sends(*servers) - before).values())
        assert sent_again == (19 if tail == "no newline" else 20)


def _torn(record: bytes, tail: str) -> bytes:
    match tail:
        case "partial":
            return record[: len(record) // 2]
        case "cut":
            return record[: len(record) // 2] + "\u00e9".encode()[:1]
        case "no newline":
            return record.rstrip(b"\n")
        case _:
            return record[: len(record) // 2] + b"\n\n"


async def _reopen(stage):
    """Make the finished job unfinished again, as if it had been killed before its shards were settled."""
    from dispatcher.app.clock import SystemClock
    from dispatcher.queue.sql import open_queue

    stage.output.unlink()
    async with open_queue(stage.directory / "out.jsonl.state" / "queue.sqlite", SystemClock()) as queue:
        (record,) = await queue.jobs()
        await queue.reopen(record.job.id, only_failed=False)
        await queue.activate(record.job.id)


async def test_f14_a_duplicate_id_is_refused_with_both_lines_and_nothing_is_sent(stage):
    async with fleet(1) as servers:
        with pytest.raises(InputError, match=r"line 3.*line 2|line 2.*line 3"):
            await stage.run(servers, "\n".join([line(0), line(1), line(1), line(2)]))
        assert sends(*servers) == Counter()


async def test_f14_identical_bodies_with_distinct_ids_survive_a_kill(stage):
    body = {"model": "fake-model", "messages": [{"role": "user", "content": "the same for all"}]}
    row = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    text = "".join(json.dumps({"custom_id": f"id-{n}", **row}) + "\n" for n in range(100))
    settings = FakeServerSettings(engine=EngineSettings(max_sequences=4, decode_step_s=0.01))
    async with fleet(1, settings) as (server,):
        stage.input.write_text(text)
        command = [sys.executable, "-m", "dispatcher", "run", str(stage.input), "-o", str(stage.output)]
        process = await asyncio.create_subprocess_exec(
            *command, "--server", server.url, "--concurrency", "4", "--quiet"
        )
        await until(lambda: len(server.requests) >= 30)
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        result = await stage.run([server], None)
        assert len(result.successes) == 100


async def test_f14_a_job_whose_rows_all_fail_ends_with_status_1_and_resends_only_when_asked(stage):
    async with fleet(1) as (server,):
        refusal = server.inject(presets.context_length())
        result = await stage.run([server], rows(30), pool={"canary": False})
        assert result.summary.exit_code == 1
        assert result.summary.snapshot.done.errors == {"context_length": 30}
        server.withdraw(refusal)
        again = await stage.run([server], None)
        assert again.summary.sent_nothing
        assert again.summary.exit_code == 1
        retried = await stage.run([server], None, run={"retry_failed": True})
        assert len(retried.successes) == 30
        assert retried.summary.exit_code == 0


async def test_f15_a_job_outlives_the_loss_of_its_whole_fleet(stage, tmp_path):
    settings = FakeServerSettings(engine=ENGINE)
    listed = tmp_path / "servers.txt"
    black_hole, refused = _silent_socket(), "http://127.0.0.1:9"
    async with fleet(2, settings) as servers, FakeServer(settings) as late:
        listed.write_text("".join(f"{server.url}\n" for server in servers))
        waits = []

        async def outage(job):
            await until(lambda: job.snapshot().done.succeeded >= 80)
            for server in servers:
                await server.die(Die(seconds=None, ending=Ending.RESET, linger_s=0))
            await asyncio.sleep(2)
            waits.append(job.snapshot().waiting_for)
            port = black_hole.getsockname()[1]
            listed.write_text(f"http://127.0.0.1:{port}\n{refused}\n{late.url}\n")

        result = await stage.run(
            [], rows(200), weather=outage, servers=[], discovery={"file": str(listed)}, pool={"limit": 16}
        )
        assert waits == [("fake-model",)]
        assert len(result.successes) == 200
        assert sends(late), "the new address was used without a restart"
        assert max(result.attempts(row) for row in result.successes) <= 2
    black_hole.close()


async def test_f15_a_name_server_that_fails_takes_no_server_away_and_new_records_are_used_without_a_restart(
    stage, names
):
    settings = FakeServerSettings(engine=ENGINE)
    black_hole = _silent_socket()
    async with fleet(2, settings) as servers, FakeServer(settings) as late:
        names.set("_http._tcp.vllm.test", "SRV", *_records(*(server.port for server in servers)))
        seen = []

        async def outage(job):
            await until(lambda: job.snapshot().done.succeeded >= 80)
            names.rcode = "SERVFAIL"
            for server in servers:
                await server.die(Die(seconds=None, ending=Ending.RESET, linger_s=0))
            await until(lambda: job.snapshot().waiting_for)
            asked = len(names.questions)
            await until(lambda: len(names.questions) >= asked + 3)
            seen.extend(view.state for view in job.snapshot().servers)
            names.rcode = None
            hole = black_hole.getsockname()[1]
            names.set("_http._tcp.vllm.test", "SRV", *_records(hole, 9, late.port))

        dns = ["srv+http://_http._tcp.vllm.test"]
        result = await stage.run(
            [], rows(200), weather=outage, servers=[], discovery={"dns": dns}, pool={"limit": 16}
        )
        assert seen == ["evicted"] * 2
        assert len(result.successes) == 200
        assert sends(late), "the new record was used without a restart"
        assert max(result.attempts(row) for row in result.successes) <= 2
    black_hole.close()


def _records(*ports: int) -> list[str]:
    return [f"0 0 {port} 127.0.0.1." for port in ports]


def _silent_socket() -> socket.socket:
    """An address that accepts connections and never says a word."""
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    silent.listen(64)
    return silent

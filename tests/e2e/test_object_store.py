"""The service with its files and journals in a real S3 server."""

import asyncio
import json
import os
import re
import shutil
import time
from collections import Counter
from random import Random

import pytest
from commands import until as until_found
from jobs import CHAT, lines, read, recorded_in, rows, sends
from object_store import Proxy, until
from openai import AsyncOpenAI
from services import serving
from store_contract import StoreContract
from structlog.testing import capture_logs

from dispatcher.app.clock import SystemClock
from dispatcher.errors import LeaseLostError
from dispatcher.model import Job, JobId, Lease, Outcome, Request, Shard
from dispatcher.results.checkpointed import CheckpointedRecorder
from dispatcher.results.copies import Copies
from dispatcher.results.recorder import JournalRecorder
from dispatcher.results.verify import verify
from dispatcher.storage.objects import ObjectStorage
from dispatcher.storage.opening import open_store
from dispatcher.storage.patience import Patience
from dispatcher.testing.engine import EngineSettings

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]


def storage_of(url):
    patience = Patience(url, SystemClock(), Random(1))
    return ObjectStorage(url, open_store(url, retries=False), open_store(url, retries=True), patience)


class TestS3(StoreContract):
    @pytest.fixture
    def store(self, bucket):
        return storage_of(bucket.url)

    @pytest.fixture(autouse=True)
    def no_leftovers(self, bucket):
        yield
        assert bucket.uploads() == []


async def prove(sdk, batch, requests, tmp_path):
    """Every row once, by the command that proves it, of what the API gives."""
    async with asyncio.timeout(150):
        while (found := await sdk.batches.retrieve(batch.id)).status != "completed":  # polled
            assert found.status in ("validating", "in_progress", "finalizing"), found
            await asyncio.sleep(0.1)
    (tmp_path / "in.jsonl").write_text(lines(requests))
    (tmp_path / "out.jsonl").write_bytes((await sdk.files.content(found.output_file_id)).content)
    assert verify(tmp_path / "in.jsonl", tmp_path / "out.jsonl", None, work_dir=tmp_path).ok
    assert [line["custom_id"] for line in read(tmp_path / "out.jsonl")] == [r["custom_id"] for r in requests]
    return found


async def test_a_job_is_taken_to_its_end_and_leaves_only_its_files(bucket, serve, tmp_path):
    requests = rows(300)
    storage = {"url": bucket.url, "directory": str(tmp_path / "scratch")}
    async with serving(None, await serve(), storage=storage) as stage:
        batch = await stage.submit(requests)
        found = await prove(stage.sdk, batch, requests, tmp_path)
        files = {f"files/{name}" for name in (batch.input_file_id, found.output_file_id)}
        assert set(bucket.keys("files")) == files
        assert len(bucket.keys("journals")) == 300 // 16 + 1
        content = bucket.read(f"files/{found.output_file_id}")
        url, headers = f"{stage.url}/v1/files/{found.output_file_id}/content", {"Range": "bytes=10-19"}
        async with stage.http.get(url, headers=headers) as part:
            assert (part.status, await part.read()) == (206, content[10:20])
        async with stage.http.get(f"{stage.url}/metrics") as metrics:
            assert "of-the-test" not in await metrics.text()
        await stage.sdk.files.delete(batch.input_file_id)
        await stage.sdk.files.delete(found.output_file_id)
        await stage.ask("DELETE", f"/jobs/{batch.id}")
        assert bucket.keys("journals") == []
        assert bucket.keys("files") == []
    assert bucket.uploads() == []
    assert not list((tmp_path / "scratch").rglob("*.journal"))


class Serving:
    """`dispatcher serve` with its files in a bucket and its queue in a scratch directory."""

    def __init__(self, cli, directory, servers, bucket, **settings):
        self._cli, self._bucket = cli, bucket
        self._config = directory / "serve.json"
        self.scratch = directory / "scratch"
        self._config.write_text(
            json.dumps(
                {
                    "servers": [server.url for server in servers],
                    "storage": {"url": bucket.url, "directory": str(self.scratch)},
                    "api": {"port": 0},
                    "telemetry": {"log_format": "json"},
                    **settings,
                }
            )
        )

    async def start(self):
        environment = self._bucket.s3.environment()
        self.command = await self._cli.start("serve", "--config", self._config, env=environment)
        self.port = (await until_found(lambda: re.search(r'"port": ?(\d+)', self.command.err)))[1]
        return AsyncOpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0)

    async def gc(self, *options):
        environment = self._bucket.s3.environment()
        return await self._cli.run("gc", "--config", self._config, *options, env=environment)

    def recorded(self):
        """The rows that this node's own journals have."""
        return recorded_in(self.scratch.glob("journals/*/*/*.journal"))

    def lose_the_disk(self):
        """But for the queue, which another database would have kept."""
        for folder in ("journals", "work"):
            shutil.rmtree(self.scratch / folder)


def stored(bucket, tmp_path):
    """The rows that journals in the bucket have."""
    found = tmp_path / "found"
    rows_found = set()
    for key in bucket.keys("journals"):
        found.write_bytes(bucket.read(key))
        rows_found |= recorded_in([found])
    return rows_found


async def submitted(client, requests):
    file = await client.files.create(file=("in.jsonl", lines(requests).encode()), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="1h")


CHECKPOINT_S = 3
IN_FLIGHT = 32


async def test_a_killed_node_whose_disk_is_lost_costs_what_came_after_the_last_checkpoint(
    bucket, cli, serve, tmp_path
):
    engine = EngineSettings(max_sequences=IN_FLIGHT, decode_step_s=0.02)
    servers = [await serve(engine=engine, answer_tokens=24) for _ in range(2)]
    settings = {
        "queue": {"shard_size": 200},
        "pool": {"limit": IN_FLIGHT},
        "results": {"checkpoint_s": CHECKPOINT_S, "sync_s": 0.1},
    }
    serving = Serving(cli, tmp_path, servers, bucket, **settings)
    requests = rows(2000)
    async with await serving.start() as client:
        batch = await submitted(client, requests)
        started = time.monotonic()
        await until(lambda: len(sends(*servers)) > 1000)
        await serving.command.kill()
    taken_s, sent_before = time.monotonic() - started, Counter(sends(*servers))
    own, kept = serving.recorded(), stored(bucket, tmp_path)
    answered = own | kept
    assert len(kept) > 300, "too little was in the store: the test has tested nothing"
    serving.lose_the_disk()
    async with await serving.start() as client:
        await prove(client, batch, requests, tmp_path)
        sent_after = Counter(sends(*servers)) - sent_before
        lost = answered - kept
        rate = len(answered) / taken_s
        print(f"{len(answered)} rows answered at {rate:.0f} rows/s, {len(lost)} of them not in the store")  # noqa: T201
        assert not kept & sent_after.keys(), "what was in the store was sent again"
        assert set(sent_after) >= lost
        assert len(lost) <= 1.5 * rate * (CHECKPOINT_S + 1)
    assert bucket.uploads() == []
    assert len(bucket.keys("journals")) == 2000 // 200


async def test_a_node_that_stops_in_order_hands_over_all_it_has(bucket, serve, tmp_path):
    server = await serve(engine=EngineSettings(max_sequences=8, decode_step_s=0.005), answer_tokens=16)
    storage = {"url": bucket.url, "directory": str(tmp_path / "scratch")}
    async with serving(None, server, storage=storage) as stage:
        batch = await stage.submit(rows(150))
        await stage.until(batch, lambda found: found.request_counts.completed >= 60)
        await stage.kill()
    shutil.rmtree(tmp_path / "scratch" / "journals")
    kept, sent = stored(bucket, tmp_path), len(sends(server))
    assert len(kept) >= 60
    async with serving(None, server, storage=storage) as stage:
        await prove(stage.sdk, batch, rows(150), tmp_path)
    assert not kept & set(sends(server)[sent:])


async def test_a_shard_costs_the_store_three_requests_and_a_job_a_few(
    s3, bucket, serve, tmp_path, monkeypatch
):
    storage = {"url": bucket.url, "directory": str(tmp_path / "scratch")}
    settings = {"queue": {"shard_size": 50}, "results": {"sync_s": 0.05}}
    async with Proxy(s3.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        async with serving(None, await serve(), storage=storage, **settings) as stage:
            batch = await stage.submit(rows(1000))
            begun = proxy.passed
            await stage.until_ended(batch, timeout_s=120)
            asked = proxy.passed - begun
    print(f"{asked} requests to the store for 1,000 rows in 20 shards")  # noqa: T201
    assert 3 * 20 <= asked <= 3 * 20 + 20


async def test_a_store_that_refuses_for_20_s_costs_time_and_no_row(s3, bucket, serve, tmp_path, monkeypatch):
    engine = EngineSettings(max_sequences=IN_FLIGHT, decode_step_s=0.02)
    server = await serve(engine=engine, answer_tokens=24)
    requests = rows(1000)
    storage = {"url": bucket.url, "directory": str(tmp_path / "scratch")}
    settings = {"results": {"sync_s": 0.05, "checkpoint_s": 2}, "queue": {"shard_size": 50}}
    with capture_logs() as logs:
        async with Proxy(s3.endpoint) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
            async with serving(None, server, storage=storage, **settings) as stage:
                batch = await stage.submit(requests)
                await until(lambda: len(sends(server)) > 300)
                proxy.refusing = True
                await asyncio.sleep(20)
                sent = len(sends(server))
                async with stage.http.get(f"{stage.url}/readyz") as ready:
                    status = ready.status
                proxy.refusing = False
                found = await prove(stage.sdk, batch, requests, tmp_path)
    assert (status, found.request_counts.failed) == (503, 0)
    assert proxy.refused > 10
    assert sent < len(requests), "the work went on through the outage: the test has tested nothing"
    assert max(Counter(sends(server)).values()) == 1
    events = Counter(entry["event"] for entry in logs)
    assert (events["store_unavailable"], events["store_available"]) == (1, 1)
    assert events["job_hindered"] == events["checkpoint_failed"] == 0
    assert bucket.uploads() == []


async def test_of_two_nodes_with_one_lease_the_second_is_refused(bucket, tmp_path):
    lease = Lease(Job(JobId("batch_1")), Shard(0, 0, 4, 0, 0, ()), 1)
    requests = [Request(index, f"row-{index}", "/v1/completions", None, b"{}") for index in range(4)]

    def node(name):
        copies = Copies(tmp_path / name)
        inner = JournalRecorder(tmp_path / name, SystemClock(), sync_s=0.01, path_of=copies.path_of)
        store = storage_of(bucket.url)
        return CheckpointedRecorder(inner, store, copies, SystemClock(), Random(1), left_s=lambda _: 60.0)

    async with node("a") as first, node("b") as second:
        for recorder, index in ((first, 0), (second, 1)):
            await recorder.open(lease, requests)
            outcome = Outcome(index, f"row-{index}", None, "", 200, None, b'{"choices":[]}')
            recorder.append(lease, outcome)
        await first.close(lease)
        with pytest.raises(LeaseLostError, match="another node has written"):
            await second.close(lease)
    (key,) = bucket.keys("journals")
    assert b"row-0" in bucket.read(key)
    assert b"row-1" not in bucket.read(key)


async def test_garbage_is_looked_for_beside_a_running_service_and_young_bytes_stay(
    bucket, cli, serve, tmp_path
):
    serving = Serving(cli, tmp_path, [await serve()], bucket)
    bucket.write("files/file-stray", b"12345")
    bucket.write("journals/batch_gone/000/000000/000001", b"")
    refused = await serving.gc()
    assert (refused.status, "there is no queue" in refused.err) == (2, True)
    async with await serving.start() as client:
        await prove(client, await submitted(client, rows(40)), rows(40), tmp_path)
        keys = bucket.keys()
        for options in (["--dry-run"], []):
            done = await serving.gc(*options)
            assert (done.status, done.out, done.err) == (0, "nothing to remove\n", "")
        assert bucket.keys() == keys


async def test_gc_removes_old_bytes_that_belong_to_nothing_and_says_so(serve, cli, tmp_path):
    storage = {"url": f"file://{tmp_path}/store", "directory": str(tmp_path / "scratch")}
    async with serving(None, await serve(), storage=storage) as stage:
        await stage.until_ended(await stage.submit(rows(20)))
        kept = sorted(path for path in (tmp_path / "store").rglob("*") if path.is_file())
        for key in ("files/file-stray", "journals/batch_gone/000/000000/000001"):
            stray = tmp_path / "store" / key
            stray.parent.mkdir(parents=True, exist_ok=True)
            stray.write_bytes(b"12345")
            os.utime(stray, (1, 1))
        config = tmp_path / "gc.json"
        config.write_text(json.dumps({"storage": storage}))
        for options, what in ((["--dry-run"], "would be removed"), ([], "removed")):
            done = await cli.run("gc", "--config", config, *options)
            assert (done.status, done.out.splitlines()) == (
                0,
                [
                    f"bytes that are no file: 1 {what}, 5 bytes",
                    f"journals and inputs of jobs that are no more: 1 {what}, 5 bytes",
                ],
            )
        assert sorted(path for path in (tmp_path / "store").rglob("*") if path.is_file()) == kept
        assert (await cli.run("gc", "--config", config)).out == "nothing to remove\n"


async def test_gc_aborts_old_uploads_that_a_kill_cut_off(bucket, cli, serve, tmp_path):
    serving = Serving(cli, tmp_path, [await serve()], bucket)
    await serving.start()
    keys = ("some/prefix/files/file-1", "some/prefix/files/file-2", "some/prefixed", "other/file")
    create = bucket.s3.client.create_multipart_upload
    begun = [create(Bucket=bucket.name, Key=key)["UploadId"] for key in keys]
    left = {upload["UploadId"] for upload in bucket.uploads()}  # moto says that each was begun in 2010
    done = await serving.gc("--dry-run")
    assert done.out == "multipart uploads that were cut off: 2 would be removed\n"
    assert {upload["UploadId"] for upload in bucket.uploads()} == left == set(begun)
    done = await serving.gc()
    assert (done.status, done.out) == (0, "multipart uploads that were cut off: 2 removed\n")
    assert {upload["UploadId"] for upload in bucket.uploads()} == set(begun[2:])


async def test_two_queues_cannot_use_one_store(bucket, cli, serve, tmp_path):
    first = Serving(cli, tmp_path, [await serve()], bucket)
    await first.start()
    other = tmp_path / "other"
    other.mkdir()
    second = Serving(cli, other, [await serve()], bucket)
    command = await cli.start("serve", "--config", other / "serve.json", env=bucket.s3.environment())
    done = await command.wait()
    assert done.status == 2
    assert f"the queue that goes with it is {first.scratch}/queue.sqlite" in done.err
    assert second.scratch.exists()


async def test_a_bucket_that_is_not_there_is_told_at_once_and_no_secret_with_it(s3, cli, serve, tmp_path):
    config = tmp_path / "serve.json"
    config.write_text(
        json.dumps({"storage": {"url": "s3://nowhere/x", "directory": str(tmp_path / "scratch")}})
    )
    done = await cli.run("serve", "--config", config, env=s3.environment())
    assert done.status == 3
    assert "s3://nowhere/x" in done.err
    assert "no such place" in done.err
    assert "of-the-test" not in done.err + done.out

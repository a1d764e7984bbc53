"""Who may do what: every route of the service, asked with no key, wrong keys and other users' keys."""

import asyncio
import io
import json
import re
import zlib

import pytest
from keyed_service import ADMIN, METERED, OTHER, TOKEN, USER, hashed, keyed, registration

from dispatcher.errors import ConfigError

OPEN = {("GET", path) for path in ("/", "/health", "/healthz", "/openapi.json", "/readyz", "/static/{name}")}
FOR_TOKENS = {("POST", "/servers/register"), ("POST", "/servers/deregister")}
FOR_ADMINS = {
    ("POST", "/servers"),
    ("DELETE", "/servers"),
    ("POST", "/servers/drain"),
    ("POST", "/servers/undrain"),
}
ENDLESS = {("GET", "/events")}
ROW = {
    "custom_id": "r",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
}


@pytest.fixture
async def asking(tmp_path):
    async with keyed(tmp_path / "data", registration=registration()) as asking:
        yield asking


def routes_of(asking):
    """Every route there is, so that a new one is asked, too."""
    found = {
        (route.method, route.resource.canonical)
        for route in asking.application.router.routes()
        if route.method != "HEAD"
    }
    assert len(found) > 25
    return found


def path_of(pattern, **names):
    unknown = "batch_000000000000000000000000"
    return re.sub(r"\{(\w+)[^}]*\}", lambda found: names.get(found[1], unknown), pattern)


async def test_every_route_but_the_open_ones_refuses_whoever_has_no_valid_key(asking):
    for method, pattern in sorted(routes_of(asking) - OPEN):
        for key in (None, "wrong", ADMIN[:-1], f"{ADMIN}x", "x" * 4000):
            status, answer, headers = await asking.ask(method, path_of(pattern), key=key)
            assert (status, headers.get("WWW-Authenticate")) == (401, "Bearer"), (method, pattern, key)
            assert answer["error"]["type"] == "authentication_error"


async def test_a_path_that_is_no_route_is_not_told_to_whoever_has_no_key(asking):
    assert (await asking.get("/nothing"))[0] == 401
    assert (await asking.get("/nothing", key=USER))[0] == 404
    assert (await asking.ask("PUT", "/servers"))[0] == 401
    assert (await asking.ask("PUT", "/servers", key=USER))[0] == 405


async def test_only_what_holds_no_data_is_open(asking):
    for method, pattern in sorted(OPEN):
        status, answer, _ = await asking.ask(method, path_of(pattern))
        assert status in (200, 404), (method, pattern)
        assert "127.0.0.1" not in str(answer)


async def test_a_users_key_does_not_do_what_is_for_admins(asking):
    for method, pattern in sorted(FOR_ADMINS):
        status, answer, _ = await asking.ask(method, path_of(pattern), key=USER)
        assert (status, answer["error"]["code"]) == (403, "admin_required"), (method, pattern)


async def test_a_users_key_is_let_in_everywhere_else(asking):
    for method, pattern in sorted(routes_of(asking) - OPEN - FOR_TOKENS - FOR_ADMINS - ENDLESS):
        status, answer, _ = await asking.ask(method, path_of(pattern), key=USER)
        assert status not in (401, 403, 500), (method, pattern, answer)


async def test_api_keys_are_no_registration_tokens_and_the_other_way_round(asking):
    for path in ("/servers/register", "/servers/deregister"):
        for key in (ADMIN, USER):
            assert (await asking.post(path, {"url": "http://127.0.0.1:1"}, key=key))[0] == 401
    assert (await asking.get("/servers", key=TOKEN))[0] == 401


@pytest.mark.parametrize("scheme", ["Basic", "Token", ""])
async def test_a_key_is_taken_from_a_bearer_header_only(asking, scheme):
    assert (await asking.get("/servers", headers={"Authorization": f"{scheme} {ADMIN}"}))[0] == 401
    assert (await asking.get(f"/servers?api_key={ADMIN}", headers={"X-Api-Key": ADMIN}))[0] == 401
    assert (await asking.get("/servers", headers={"Authorization": f"bearer  {ADMIN} "}))[0] == 200


async def submitted(asking, key, rows=3):
    import aiohttp

    form = aiohttp.FormData({"purpose": "batch"})
    lines = (json.dumps({**ROW, "custom_id": f"r{number}"}) for number in range(rows))
    form.add_field("file", "\n".join(lines).encode(), filename="in.jsonl")
    _, file, _ = await asking.ask("POST", "/v1/files", key=key, data=form)
    wanted = {
        "input_file_id": file["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    status, batch, _ = await asking.post("/v1/batches", wanted, key=key)
    return file["id"], status, batch


async def test_what_one_user_has_is_not_there_for_another(asking):
    file_id, status, batch = await submitted(asking, USER)
    assert status == 200
    names = {"file_id": file_id, "job_id": batch["id"], "batch_id": batch["id"]}
    owned = [(m, p) for m, p in routes_of(asking) if any(f"{{{name}}}" in p for name in names)]
    assert len(owned) >= 10
    # deleting comes last, and the owner's turn after the other's
    for method, pattern in sorted(owned, key=lambda route: (route[0] == "DELETE", route)):
        body = {"json": {}} if method in ("POST", "PATCH") else {}
        status, answer, _ = await asking.ask(method, path_of(pattern, **names), key=OTHER, **body)
        assert status == 404, (method, pattern, answer)
    for path in ("/v1/files", "/v1/batches", "/jobs"):
        assert (await asking.get(path, key=OTHER))[1]["data"] == []
        assert len((await asking.get(path, key=USER))[1]["data"]) == 1
        assert len((await asking.get(path, key=ADMIN))[1]["data"]) == 1
    wanted = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert (await asking.post("/v1/batches", wanted, key=OTHER))[0] == 400


async def test_a_job_with_more_rows_than_its_key_may_have_queued_fails_when_they_are_counted(tmp_path):
    bounded = [{"name": "bob", "hash": hashed(USER), "limits": {"queued_rows": 5}}]
    async with keyed(tmp_path / "data", keys=bounded) as asking:
        for rows, status, queued in ((6, "failed", 0), (3, "in_progress", None), (3, "failed", 3)):
            path = f"/v1/batches/{(await submitted(asking, USER, rows))[2]['id']}"
            async with asyncio.timeout(10):
                while (batch := (await asking.get(path, key=USER))[1])["status"] == "validating":  # noqa: ASYNC110  # no event
                    await asyncio.sleep(0.02)
            assert batch["status"] == status
            if queued is not None:
                (error,) = batch["errors"]["data"]
                assert (error["code"], error["line"]) == ("queued_rows_exceeded", None)
                told = f"has {rows} requests: this key may have 5 rows queued, and has {queued}"
                assert told in error["message"]


async def test_a_key_has_no_more_open_jobs_than_it_may(asking):
    assert (await submitted(asking, OTHER))[1] == 200
    _, status, answer = await submitted(asking, OTHER)
    assert (status, answer["error"]["code"]) == (429, "open_jobs_exceeded")
    assert (await submitted(asking, USER))[1] == 200


async def test_of_jobs_sent_at_once_a_key_gets_no_more_than_it_may(asking):
    file_id, status, batch = await submitted(asking, OTHER)
    assert status == 200
    await asking.post(f"/v1/batches/{batch['id']}/cancel", key=OTHER)
    async with asyncio.timeout(10):
        path = f"/jobs/{batch['id']}"
        while (await asking.get(path, key=OTHER))[1]["status"] != "cancelled":  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.05)
    wanted = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made = await asyncio.gather(*(asking.post("/v1/batches", wanted, key=OTHER) for _ in range(8)))
    assert sorted(status for status, *_ in made) == [200] + [429] * 7
    assert (await asking.post(f"/jobs/{batch['id']}/retry", key=OTHER))[0] == 429


async def test_a_key_sends_no_more_live_requests_a_minute_than_it_may(asking):
    body = {"model": "m", "messages": []}
    for _ in range(2):
        assert (await asking.post("/v1/chat/completions", body, key=METERED))[0] != 429
    status, answer, headers = await asking.post("/v1/embeddings", body, key=METERED)
    assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
    assert 25 <= int(headers["Retry-After"]) <= 30
    assert (await asking.get("/servers", key=METERED))[0] == 200
    assert (await asking.post("/v1/embeddings", body, key=USER))[0] != 429


async def test_metrics_need_a_key_where_there_are_keys(asking):
    assert (await asking.get("/metrics"))[0] == 401
    assert "dispatcher_" in (await asking.get("/metrics", key=USER))[1]


# Without keys


async def test_without_keys_a_service_is_not_open_to_a_network(tmp_path):
    with pytest.raises(ConfigError, match=r"api\.keys: .*api\.host is 0\.0\.0\.0"):
        async with keyed(tmp_path / "data", keys=[], host="0.0.0.0"):  # noqa: S104  # it must refuse
            pass
    assert not (tmp_path / "data").exists()


async def test_without_keys_everyone_on_this_machine_is_an_admin(tmp_path):
    async with keyed(tmp_path / "data", keys=[]) as asking:
        assert (await asking.get("/servers"))[0] == 200
        assert (await asking.post("/servers", {"url": "http://127.0.0.1:9"}))[0] == 201
        assert (await asking.get("/metrics"))[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:8080"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]:8080"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Host": "localhost:1", "Origin": "http://localhost:2"}, 403),
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
    ],
)
async def test_without_keys_pages_of_other_sites_are_refused(tmp_path, headers, status):
    async with keyed(tmp_path / "data", keys=[]) as asking:
        assert (await asking.get("/servers", headers=headers))[0] == status


# Bodies


async def test_a_body_is_not_read_before_the_key(asking):
    reader, writer = await asyncio.open_connection(*asking.service.address)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{")
    async with asyncio.timeout(5):
        assert b" 401 " in await reader.readline()
    writer.close()


async def test_a_slow_body_is_not_waited_for(asking, monkeypatch):
    monkeypatch.setattr("dispatcher.api.bodies.READ_S", 0.2)
    for path in ("/servers/drain", "/v1/chat/completions", "/v1/batches"):
        reader, writer = await asyncio.open_connection(*asking.service.address)
        head = f"Host: x\r\nAuthorization: Bearer {ADMIN}\r\nContent-Length: 99"
        writer.write(f"POST {path} HTTP/1.1\r\n{head}\r\n\r\n{{".encode())
        async with asyncio.timeout(5):
            assert b" 408 " in await reader.readline()
        writer.close()


async def test_an_oversized_body_is_refused(asking):
    status, answer, _ = await asking.post("/servers", {"url": "x" * 70_000}, key=ADMIN)
    assert (status, answer["error"]["type"]) == (413, "invalid_request_error")
    data = b'{"model": "' + b"m" * (65 * 2**20) + b'"}'
    assert (await asking.ask("POST", "/v1/chat/completions", key=USER, data=io.BytesIO(data)))[0] == 413


async def test_who_has_no_token_does_not_fill_the_memory(asking):
    reader, writer = await asyncio.open_connection(*asking.service.address)
    writer.write(b"POST /servers/register HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    writer.write(chunk * 3)
    async with asyncio.timeout(5):
        assert b" 413 " in await reader.readline()
    writer.close()


@pytest.mark.parametrize(
    "header",
    [b"Authorization: Bearer \xff\xfe", b"Authorization: Bearer", b"Authorization: Bearer " + b"x" * 8000],
)
async def test_odd_headers_are_no_fault_of_ours(asking, header):
    reader, writer = await asyncio.open_connection(*asking.service.address)
    writer.write(b"GET /servers HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n")
    async with asyncio.timeout(5):
        assert (await reader.readline()).split()[1] in (b"400", b"401")
    writer.close()


async def test_a_small_body_that_unpacks_to_a_large_one_is_refused(asking):
    packed = zlib.compress(b"x" * (80 * 2**20))
    headers = {"Content-Encoding": "deflate"}
    for path, key in (("/v1/chat/completions", USER), ("/servers", ADMIN)):
        status, *_ = await asking.ask("POST", path, key=key, data=io.BytesIO(packed), headers=headers)
        assert status in (400, 413)


async def test_a_body_that_is_not_what_its_encoding_says_is_the_callers_fault(asking):
    headers = {"Content-Encoding": "gzip"}
    for path, key in (("/v1/chat/completions", USER), ("/servers", ADMIN), ("/v1/batches", USER)):
        status, answer, _ = await asking.ask("POST", path, key=key, data=b"garbage", headers=headers)
        assert (status, answer["error"]["code"]) == (400, "invalid_body")


async def test_a_slow_upload_is_not_waited_for(asking, monkeypatch):
    monkeypatch.setattr("dispatcher.api.openai_files.CHUNK_S", 0.2)
    reader, writer = await asyncio.open_connection(*asking.service.address)
    head = f"Host: x\r\nAuthorization: Bearer {USER}\r\nContent-Length: 9999"
    writer.write(
        f"POST /v1/files HTTP/1.1\r\n{head}\r\nContent-Type: multipart/form-data; boundary=b\r\n\r\n"
        '--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nabc'.encode()
    )
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        dripping = tasks.create_task(drip(writer))
        assert b" 408 " in await reader.readline()
        dripping.cancel()
    writer.close()


async def drip(writer):
    for _ in range(100):
        writer.write(b"a")
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff", b'{"url": 1}', b'{"url": "http://a:1", "role": "admin"}', b"[" * 50_000],
)
async def test_a_malformed_body_is_the_callers_fault(asking, body):
    for path in ("/servers", "/servers/drain", "/v1/batches"):
        assert (await asking.ask("POST", path, key=ADMIN, data=body))[0] == 400


@pytest.mark.parametrize(
    "name",
    ["..%2fservers.json", "%2e%2e%2fservers.json", "..%5cx", "%00", "file-%0a", "a" * 5000, "%2fetc"],
)
async def test_ids_cannot_leave_the_storage_directory(asking, name):
    from yarl import URL

    for path in ("/v1/files/{}", "/v1/files/{}/content", "/v1/batches/{}", "/jobs/{}", "/jobs/{}/results"):
        url = URL(asking.url + path.format(name), encoded=True)
        async with asking.session.get(url, headers={"Authorization": f"Bearer {ADMIN}"}) as answer:
            assert answer.status in (400, 404), (path, name)
            assert "hash" not in await answer.text()
    url = URL(f"{asking.url}/static/{name}", encoded=True)
    async with asking.session.get(url) as answer:
        assert answer.status in (400, 404)

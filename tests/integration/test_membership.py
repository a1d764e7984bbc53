"""Servers that come and go while the service runs: added, drained, registered; and none that must not."""

import json
import stat

import pytest
from keyed_service import ADMIN, SECRETS, SERVER_KEY, TOKEN, TOKEN_2, USER, keyed, registration

from dispatcher.api.reasons import KINDS
from dispatcher.errors import StateError
from dispatcher.testing import Match, Respond


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


def is_active(url):
    return lambda servers: servers.get(url, {}).get("state") == "active"


async def test_an_added_server_works_and_is_there_after_a_restart_with_its_key(data, serve):
    server = await serve(api_key=SERVER_KEY)
    async with keyed(data) as asking:
        wanted = {"url": f"{server.url}/v1/", "api_key": SERVER_KEY, "limit": 5}
        status, answer, _ = await asking.post("/servers", wanted, key=ADMIN)
        assert status == 201
        assert [each["url"] for each in answer["data"]] == [server.url]
        seen = (await asking.until(is_active(server.url)))[server.url]
        assert (seen["source"], seen["limit"], seen["models"]) == ("added", 5, ["fake-model"])
        assert seen["version"]
    assert stat.S_IMODE((data / "servers.json").stat().st_mode) == 0o600
    async with keyed(data) as asking:
        assert (await asking.until(is_active(server.url)))[server.url]["limit"] == 5


async def test_what_a_server_says_of_a_request_is_for_admins_to_read(data, serve):
    server = await serve()
    said = '{"error": {"message": "cannot parse: my secret", "code": 500}}'
    server.inject(Respond(500, said), Match(text="my secret"))
    async with keyed(data, servers=[server.url]) as asking:
        await asking.until(is_active(server.url))
        asked = {"model": "fake-model", "messages": [{"role": "user", "content": "my secret"}]}
        await asking.post("/v1/chat/completions", asked, key=USER)
        (for_admins,) = (await asking.get("/servers", key=ADMIN))[1]["data"]
        (for_users,) = (await asking.get("/servers", key=USER))[1]["data"]
        assert "my secret" in for_admins["last_fault"]
        assert "secret" not in repr(for_users)
        assert for_users["reason"] in KINDS.values()
        assert for_users["last_fault"] is None


async def test_an_added_server_can_be_changed_and_removed(data, serve):
    server = await serve()
    async with keyed(data) as asking:
        for limit in (5, 7):
            await asking.post("/servers", {"url": server.url, "limit": limit}, key=ADMIN)
        await asking.until(lambda servers: servers[server.url]["limit"] == 7)
        status, answer, _ = await asking.ask("DELETE", f"/servers?url={server.url}/v1", key=ADMIN)
        assert (status, answer) == (204, "")
        await asking.until(lambda servers: not servers)
        assert (await asking.ask("DELETE", f"/servers?url={server.url}", key=ADMIN))[0] == 404
    async with keyed(data) as asking:
        assert await asking.servers() == {}


async def test_a_drained_server_stays_so_over_a_restart_until_it_is_undrained(data, serve):
    server = await serve()
    async with keyed(data, servers=[server.url]) as asking:
        await asking.until(is_active(server.url))
        status, answer, _ = await asking.post("/servers/drain", {"url": server.url}, key=ADMIN)
        assert (status, answer["state"], answer["drained"]) == (200, "drained", True)
    async with keyed(data, servers=[server.url]) as asking:
        seen = (await asking.servers())[server.url]
        assert (seen["state"], seen["source"], seen["since"]) == ("drained", "servers", None)
        await asking.post("/servers/undrain", {"url": server.url}, key=ADMIN)
        assert not (await asking.until(is_active(server.url)))[server.url]["drained"]


async def test_what_the_configuration_lists_is_not_changed_from_outside(data):
    url = "http://127.0.0.1:9"
    async with keyed(data, servers=[url]) as asking:
        for status, answer, _ in (
            await asking.post("/servers", {"url": url, "limit": 3}, key=ADMIN),
            await asking.ask("DELETE", "/servers", json={"url": url}, key=ADMIN),
        ):
            assert (status, answer["error"]["code"]) == (409, "server_conflict")
        assert (await asking.post("/servers/drain", {"url": "http://127.0.0.1:8"}, key=ADMIN))[0] == 404


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"url": "ftp://a"}, "url must be http or https"),
        ({"url": "http://user:secret@a:1"}, "user or password"),
        ({"url": "http://a:1", "limit": 0}, "limit must be"),
        ({"url": "http://a:1", "headers": {"Transfer-Encoding": "chunked"}}, "leave Transfer-Encoding"),
        ({"url": "http://a:1", "api_key": "a\r\nb"}, "api_key must be printable"),
        ({"url": "http://gpu[1-99999]:1"}, "url"),
    ],
)
async def test_a_server_that_cannot_be_is_refused_with_the_reason(data, body, part):
    async with keyed(data) as asking:
        status, answer, _ = await asking.post("/servers", body, key=ADMIN)
        assert status == 400
        assert part in answer["error"]["message"]
        assert "secret" not in answer["error"]["message"]
        assert await asking.servers() == {}


async def test_a_file_of_servers_that_is_not_ours_is_no_silent_loss(data):
    data.mkdir()
    (data / "servers.json").write_text('{"added": [{"no": 1}]}')
    with pytest.raises(StateError, match=r"servers\.json is not a list of added servers"):
        async with keyed(data):
            pass


# Registration


async def test_a_registered_server_works_and_leaves_when_it_says_so(data, serve):
    server = await serve()
    async with keyed(data, registration=registration()) as asking:
        status, answer, _ = await asking.post("/servers/register", {"url": server.url}, key=TOKEN)
        assert (status, answer) == (200, {"url": server.url, "ttl_s": 3})
        assert (await asking.until(is_active(server.url)))[server.url]["source"] == "registered"
        status, answer, _ = await asking.post("/servers/deregister", {"url": server.url}, key=TOKEN)
        assert answer == {"url": server.url, "deregistered": True}
        assert await asking.servers() == {}
        assert (await asking.post("/servers/deregister", {"url": server.url}, key=TOKEN))[1][
            "deregistered"
        ] is False


async def test_a_silent_server_is_forgotten(data, serve):
    server = await serve()
    async with keyed(data, registration=registration()) as asking:
        await asking.post("/servers/register", {"url": server.url}, key=TOKEN)
        await asking.until(is_active(server.url))
        await asking.until(lambda servers: not servers, timeout_s=12)


@pytest.mark.parametrize(
    ("url", "networks"),
    [
        ("http://127.0.0.1:9", []),
        ("http://127.0.0.1:9", ["0.0.0.0/0", "::/0"]),
        ("http://localhost:9", ["0.0.0.0/0", "::/0"]),
        ("http://2130706433:9", ["0.0.0.0/0"]),
        ("http://0x7f.1:9", ["0.0.0.0/0"]),
        ("http://[::ffff:127.0.0.1]:9", ["::/0", "0.0.0.0/0"]),
        ("http://0.0.0.0:9", ["0.0.0.0/0"]),
        ("http://169.254.169.254", ["0.0.0.0/0", "169.254.0.0/16"]),
        ("http://[fd00:ec2::254]", ["::/0", "fd00::/8"]),
        ("http://100.100.100.200", ["100.64.0.0/10"]),
        ("http://[64:ff9b::7f00:1]:9", ["::/0"]),
        ("http://192.168.0.1:9", ["10.0.0.0/8"]),
    ],
)
async def test_a_forbidden_address_is_not_registered_and_never_called(data, url, networks):
    async with keyed(data, registration=registration(networks=networks)) as asking:
        status, answer, _ = await asking.post("/servers/register", {"url": url}, key=TOKEN)
        assert (status, answer["error"]["code"]) == (403, "address_forbidden")
        assert await asking.servers() == {}


async def test_a_name_is_checked_once_and_the_address_that_was_checked_is_used(data, serve):
    server = await serve()
    async with keyed(data, registration=registration()) as asking:
        url = server.url.replace("127.0.0.1", "localhost")
        assert (await asking.post("/servers/register", {"url": url}, key=TOKEN))[0] == 200
        await asking.until(is_active(url))
        (watched,) = asking.service._node.desk._pool.servers.values()
        assert (watched.spec.base_url, watched.spec.host_name) == (server.url, "localhost")


async def test_a_name_without_an_address_and_a_range_are_refused(data):
    async with keyed(data, registration=registration()) as asking:
        for url in ("http://no-such-host.invalid:1", "http://127.0.0.[1-9]:1"):
            assert (await asking.post("/servers/register", {"url": url}, key=TOKEN))[0] in (403, 422)


async def test_another_tokens_server_cannot_be_taken_over_or_deregistered(data):
    async with keyed(data, registration=registration()) as asking:
        body = {"url": "http://127.0.0.1:9"}
        assert (await asking.post("/servers/register", body, key=TOKEN))[0] == 200
        for path in ("/servers/register", "/servers/deregister"):
            assert (await asking.post(path, body, key=TOKEN_2))[0] == 422


async def test_a_registration_cannot_change_a_configured_server(data, serve):
    server = await serve(api_key=SERVER_KEY)
    listed = {"url": server.url, "api_key": SERVER_KEY, "limit": 3}
    async with keyed(data, servers=[listed], registration=registration()) as asking:
        await asking.until(is_active(server.url))
        await asking.post("/servers/register", {"url": server.url, "limit": 9, "api_key": "x"}, key=TOKEN)
        seen = (await asking.servers())[server.url]
        assert (seen["limit"], seen["source"]) == (3, "servers")


async def test_the_fleets_key_is_not_shown_to_a_server_that_registers(data, serve):
    server = await serve(api_key=SERVER_KEY)
    async with keyed(data, registration=registration(), api_key=SERVER_KEY) as asking:
        await asking.post("/servers/register", {"url": server.url}, key=TOKEN)
        await asking.until(lambda servers: servers[server.url]["state"] == "mismatched")
        await asking.post("/servers/register", {"url": server.url, "api_key": SERVER_KEY}, key=TOKEN)
        await asking.until(is_active(server.url))


async def test_without_tokens_nobody_registers(data):
    async with keyed(data) as asking:
        for key in (TOKEN, ADMIN):
            assert (await asking.post("/servers/register", {"url": "http://10.0.0.1:1"}, key=key))[0] == 401


async def test_no_secret_stands_in_the_log_in_metrics_or_in_answers(data, serve, capfd):
    server = await serve(api_key=SERVER_KEY)
    said = []
    async with keyed(data, registration=registration()) as asking:
        for key in (*SECRETS, f"{ADMIN}x"):
            for path in ("/servers", "/servers/register", "/v1/chat/completions", "/v1/files", "/nothing"):
                _, *answered = await asking.post(path, {"url": "http://x:1?", "api_key": key}, key=key)
                said.append(answered)
        await asking.post("/servers", {"url": server.url, "api_key": SERVER_KEY}, key=ADMIN)
        await asking.until(is_active(server.url))
        for path in ("/servers", "/metrics", "/jobs", "/"):
            _, *answered = await asking.get(path, key=USER)
            said.append(answered)
    told = json.dumps([[str(answer), str(headers)] for answer, headers in said]) + "".join(capfd.readouterr())
    assert [secret for secret in SECRETS if secret in told] == []

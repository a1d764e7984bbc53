"""Two services on one PostgreSQL and one store: each sees the other, its work and its servers."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from jobs import rows
from keyed_service import registration
from services import serving

from dispatcher.testing.engine import EngineSettings

pytestmark = pytest.mark.services
SLOW = EngineSettings(max_sequences=4, decode_step_s=0.05)
LEASE_S = 6.0
SEEN_S = 5.0
"""A heartbeat in two seconds, a look in one."""


@pytest.fixture
def open_node(url, tmp_path):
    """Opens a service by its name."""

    @asynccontextmanager
    async def opened(name, *servers, **settings):
        ours = {
            "queue": {"url": url.secret, "shard_size": 800, "lease_s": LEASE_S},
            "storage": {"url": f"file://{tmp_path}/store", "directory": str(tmp_path / name)},
            "results": {"sync_s": 0.02, "checkpoint_s": 1},
            "pool": {"limit": 4},
        }
        async with serving(None, *servers, **{**ours, **settings}) as stage:
            yield stage

    return opened


async def nodes(stage):
    return {node["here"]: node for node in (await stage.ask("GET", "/nodes"))[1]["data"]}


async def until(condition, timeout_s=SEEN_S):
    async with asyncio.timeout(timeout_s):
        while not (found := await condition()):  # noqa: ASYNC110  # it is polled
            await asyncio.sleep(0.05)
    return found


async def states(stage):
    return sorted(node["state"] for node in (await stage.ask("GET", "/nodes"))[1]["data"])


def is_seen(stage, *expected):
    async def condition():
        return await states(stage) == [*expected]

    return condition


async def test_nodes_come_drain_and_go_before_each_others_eyes(open_node, serve):
    server = await serve(answer_tokens=300, engine=SLOW)  # 15 s to drain
    async with open_node("a", server) as one:
        assert await states(one) == ["active"]
        async with open_node("b", server, dispatch={"drain_s": 30}) as other:
            await until(is_seen(one, "active", "active"))
            await until(is_seen(other, "active", "active"))
            await one.submit(rows(300))

            async def both_work():
                return all(node["in_flight"] and node["shards"] for node in (await nodes(one)).values())

            await until(both_work, 15)
            assert {node["jobs"] for node in (await nodes(one)).values()} == {0, 1}
            other.service.request_stop()
            await until(is_seen(one, "active", "draining"))
        await until(is_seen(one, "active"))


async def test_a_node_that_ends_without_a_word_is_silent(open_node, serve, monkeypatch):
    server = await serve()
    async with open_node("a", server) as one, open_node("b", server) as other:
        await until(is_seen(one, "active", "active"))
        monkeypatch.setattr("dispatcher.app.attendance.Attendance._leave", _without_a_word)
        await other.kill()
        await until(is_seen(one, "active", "silent"), LEASE_S + SEEN_S)
        assert (await nodes(one))[False]["silent_s"] >= LEASE_S


async def _without_a_word(_attendance):
    pass


async def test_what_each_has_in_hand_is_counted_at_both(open_node, serve):
    """Shards of a hundred rows at a job's end, none of which is settled yet: all that is done is in hand."""
    server = await serve(answer_tokens=4, engine=SLOW)
    async with open_node("a", server) as one, open_node("b", server) as other:
        batch = await one.submit(rows(400))

        async def same_counts():
            """Both see more than either has done, by no more than what was done since a heartbeat."""
            views = [(await stage.ask("GET", f"/jobs/{batch.id}"))[1] for stage in (one, other)]
            own = [
                sum(shard.tally.succeeded for shard in stage.service._node.desk.shards)
                for stage in (one, other)
            ]
            if min(own) < 10:
                return False
            assert [view["counts"]["succeeded"] <= sum(own) for view in views] == [True, True]
            return all(
                view["counts"]["succeeded"] > max(own)
                and view["counts"]["in_flight"] > 4
                and view["rows_per_s"] > 0
                for view in views
            )

        await until(same_counts, 20)


async def test_servers_are_added_held_out_and_registered_at_any_node_for_all(open_node, serve):
    server = await serve()
    settings = {"discovery": {"registration": registration()}}
    async with open_node("a", **settings) as one, open_node("b", **settings) as other:
        await one.ask("POST", "/servers", json={"url": server.url, "api_key": "hush", "limit": 3})

        async def shown_at(stage, **expected):
            found = {each["url"]: each for each in (await stage.ask("GET", "/servers"))[1]["data"]}
            return server.url in found and expected.items() <= found[server.url].items()

        await until(lambda: shown_at(other, state="active", limit=3, source="added"), 10)
        await other.ask("POST", "/servers/drain", json={"url": server.url})
        await until(lambda: shown_at(one, state="drained"), 2)
    async with open_node("c", **settings) as again:
        assert await shown_at(again, drained=True, source="added")
        await again.ask("POST", "/servers/undrain", json={"url": server.url})
        await until(lambda: shown_at(again, state="active"), 10)

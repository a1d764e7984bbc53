"""Half of the pool a minute, and no more."""

from dispatcher.config import PoolSettings
from dispatcher.pool.brake import WITHIN_S, Brake


def evicted(brake, servers, now=0.0):
    """Try to evict these one after the other; those that were."""
    went = []
    for server in servers:
        if brake.allows(server, len(servers) - len(went), now):
            went.append(server)
    return went


def test_half_of_the_pool_may_go_and_no_more():
    assert evicted(Brake(), [f"s{n}" for n in range(10)]) == ["s0", "s1", "s2", "s3", "s4"]


def test_an_odd_pool_keeps_the_larger_half():
    assert evicted(Brake(), ["a", "b", "c"]) == ["a"]


def test_of_two_one_may_go():
    assert evicted(Brake(), ["a", "b"]) == ["a"]


def test_the_only_server_may_go():
    assert evicted(Brake(), ["a"]) == ["a"]


def test_a_minute_later_the_next_may_go():
    brake = Brake()
    assert brake.allows("a", 2, 0.0)
    assert not brake.allows("b", 1, WITHIN_S - 0.001)
    assert brake.allows("b", 1, WITHIN_S)


def test_a_refusal_is_not_counted():
    brake = Brake()
    assert brake.allows("a", 4, 0.0)
    assert brake.allows("b", 3, 0.0)
    assert not brake.allows("c", 2, 0.0)
    assert not brake.allows("c", 2, WITHIN_S - 1)
    assert brake.allows("c", 2, WITHIN_S)


def test_a_row_that_hangs_servers_is_not_kept_from_its_judge_by_the_default_stall():
    """It hangs the second of two servers a stall after the first, which is back by then."""
    brake, stall_s = Brake(), PoolSettings().stall_s
    assert brake.allows("a", 2, 0.0)
    assert brake.allows("b", 2, stall_s)

import hashlib

import pytest

from dispatcher.api.access import Access, access_to, is_live
from dispatcher.api.keyring import Keyring, Meter, Principal, Role, Tokens
from dispatcher.config import Hashed, KeyEntry, KeyLimits


def hashed(secret):
    return f"sha256:{hashlib.sha256(secret.encode()).hexdigest()}"


def test_a_key_is_its_holders_and_nobody_elses():
    limits = KeyLimits(open_jobs=3)
    ring = Keyring(
        [
            KeyEntry(name="ann", hash=hashed("a"), role="admin"),
            KeyEntry(name="bob", hash=hashed("b"), limits=limits),
        ]
    )
    assert ring.holder("a") == Principal("ann", Role.ADMIN, KeyLimits())
    assert ring.holder("b") == Principal("bob", Role.USER, limits)
    assert [ring.holder(other) for other in ("", "A", "ab", "é", hashed("a"))] == [None] * 5
    assert not ring.is_empty
    assert Keyring([]).is_empty


def test_a_token_has_a_name():
    tokens = Tokens([Hashed(name="x", hash=hashed("1")), Hashed(name="y", hash=hashed("2"))])
    assert [tokens.name_of(secret) for secret in ("1", "2", "3")] == ["x", "y", None]


@pytest.mark.parametrize("per_minute", [1, 2, 7, 60, 1000])
def test_a_minutes_worth_may_come_at_once_and_then_one_at_a_time(per_minute):
    meter, now = Meter(per_minute), 1000.0
    assert [meter.take(now) for _ in range(per_minute)] == [0.0] * per_minute
    delay_s = meter.take(now)
    assert delay_s == pytest.approx(60 / per_minute)
    assert meter.take(now + delay_s / 2) == pytest.approx(delay_s / 2)
    assert meter.take(now + delay_s) == 0.0
    assert meter.take(now + delay_s) > 0


def test_refused_requests_do_not_count():
    meter = Meter(1)
    meter.take(0.0)
    assert [meter.take(float(second)) for second in range(1, 60)] == pytest.approx(list(range(59, 0, -1)))
    assert meter.take(60.0) == 0.0


def test_a_meter_that_was_not_used_for_long_saves_no_more_than_a_minutes_worth():
    meter = Meter(3)
    meter.take(0.0)
    assert [meter.take(1e6) > 0 for _ in range(4)] == [False, False, False, True]


def test_a_key_without_a_limit_is_not_metered():
    ring = Keyring([KeyEntry(name="ann", hash=hashed("a"), limits=KeyLimits(live_per_minute=1))])
    ann, bob = Principal("ann", Role.USER, KeyLimits()), Principal("bob", Role.USER, KeyLimits())
    assert ring.live_delay_s(ann, 0.0) == 0.0
    assert ring.live_delay_s(ann, 0.0) == 60.0
    assert [ring.live_delay_s(bob, 0.0) for _ in range(9)] == [0.0] * 9


@pytest.mark.parametrize(
    ("method", "pattern", "access"),
    [
        ("GET", "/healthz", Access.OPEN),
        ("GET", "/health", Access.OPEN),
        ("HEAD", "/healthz", Access.OPEN),
        ("GET", "/static/{name}", Access.OPEN),
        ("POST", "/static/{name}", Access.KEY),
        ("POST", "/healthz", Access.KEY),
        ("GET", "/servers", Access.KEY),
        ("POST", "/servers", Access.ADMIN),
        ("POST", "/servers/register", Access.TOKEN),
        ("GET", "/whatever/comes/next", Access.KEY),
        ("GET", None, Access.KEY),
    ],
)
def test_a_route_asks_for_a_key_unless_it_is_named(method, pattern, access):
    assert access_to(method, pattern) is access


def test_live_requests_are_posts_to_a_servers_routes():
    assert is_live("POST", "/v1/chat/completions")
    assert not is_live("GET", "/v1/chat/completions")
    assert not is_live("POST", "/v1/batches")

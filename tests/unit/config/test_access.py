import json

import pytest

from dispatcher.config import load_config
from dispatcher.errors import ConfigError

HASH, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


def faults_of(tree, environ=None):
    with pytest.raises(ConfigError) as caught:
        load_config(None, tree, environ or {})
    return {fault.where: fault.message.removesuffix(" (from arguments)") for fault in caught.value.faults}


def key(**fields):
    return {"name": "ann", "hash": HASH, **fields}


def keys(*entries):
    return {"api": {"keys": list(entries)}}


def registration(**fields):
    return {"discovery": {"registration": {"tokens": [{"name": "t", "hash": HASH}], **fields}}}


def test_a_key_is_a_users_without_limits_unless_it_says_more():
    (entry,) = load_config(None, keys(key()), {}).api.keys
    assert (entry.role, entry.limits.model_dump()) == (
        "user",
        {"open_jobs": None, "queued_rows": None, "live_per_minute": None},
    )
    assert entry.digest == bytes.fromhex("a" * 64)


def test_keys_and_registration_may_stand_in_the_environment_as_json():
    environ = {
        "DISPATCHER_API__KEYS": json.dumps([key(role="admin")]),
        "DISPATCHER_DISCOVERY__REGISTRATION": json.dumps(
            {"tokens": [{"name": "t", "hash": HASH}], "networks": ["10.0.0.0/8"]}
        ),
    }
    config = load_config(None, {}, environ)
    assert config.api.keys[0].role == "admin"
    assert [str(network) for network in config.discovery.registration.networks] == ["10.0.0.0/8"]
    assert config.discovery.registration.ttl_s == 30


def test_nobody_registers_from_anywhere_unless_networks_say_so():
    assert load_config(None, registration(), {}).discovery.registration.networks == ()
    assert load_config(None, {}, {}).discovery.registration is None


@pytest.mark.parametrize(
    ("tree", "where", "message"),
    [
        (keys(key(hash="key-secret")), "api.keys[0].hash", "must be sha256: and 64 hex digits"),
        (keys(key(hash=HASH.upper())), "api.keys[0].hash", "must be sha256:"),
        (keys(key(name="a b")), "api.keys[0].name", "must be up to 64 letters"),
        (keys(key(name="-a")), "api.keys[0].name", "must be up to 64 letters"),
        (keys(key(role="root")), "api.keys[0].role", "must be 'user' or 'admin'"),
        (keys(key(rol="user")), "api.keys[0].rol", "is not a setting; did you mean role?"),
        (
            keys(key(limits={"open_job": 1})),
            "api.keys[0].limits.open_job",
            "is not a setting; did you mean open_jobs?",
        ),
        (
            keys(key(limits={"live_per_minute": 0})),
            "api.keys[0].limits.live_per_minute",
            "must be greater than or equal to 1",
        ),
        (keys(key(), key(hash=OTHER)), "api.keys", "must have each name once: ann"),
        (keys(key(), key(name="bob")), "api.keys", "must have each hash once"),
        (registration(networks=["10.0.0.1/8"]), "discovery.registration.networks[0]", "must be a network"),
        (registration(ttl_s=1), "discovery.registration.ttl_s", "must be greater than or equal to 3"),
        (registration(ttl=9), "discovery.registration.ttl", "is not a setting; did you mean ttl_s?"),
        ({"discovery": {"registration": {}}}, "discovery.registration.tokens", "is missing"),
    ],
)
def test_what_cannot_be_is_named_with_its_place(tree, where, message):
    faults = faults_of(tree)
    assert list(faults) == [where]
    assert faults[where].startswith(message)


def test_a_key_in_place_of_its_hash_is_not_repeated():
    assert "key-secret" not in str(faults_of(keys(key(hash="key-secret"))))
    environ = {"DISPATCHER_API__KEYS": '[{"name": "a", "hash": "key-secret"'}
    assert "key-secret" not in str(faults_of({}, environ))

"""`dispatcher check` of settings; inputs are checked in tests/integration/test_run.py."""

import pytest
from typer.testing import CliRunner

from dispatcher.cli.commands import app


@pytest.fixture
def check(tmp_path, monkeypatch):
    for name in ("DISPATCHER_API_KEY", "DISPATCHER_URL"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "dispatcher.yaml"

    def checked(text, *more):
        path.write_text(text)
        done = CliRunner().invoke(app, ["check", "--config", str(path), *map(str, more)])
        return done.exit_code, done.stdout, done.stderr.replace(str(path), "PATH")

    return checked


def test_settings_that_can_be_used_are_said_to_be_so(check):
    status, out, err = check("discovery:\n  kubernetes: {service: vllm}\n")
    assert (status, err) == (0, "")
    assert out.endswith("every setting can be used\n")


def test_every_fault_of_the_settings_is_named_with_its_line(check):
    status, out, err = check("pool: {stall_s: 0}\ndiscovery:\n  kubernetes: {servce: vllm}\n")
    assert (status, out) == (2, "")
    assert "pool.stall_s: must be greater than 0" in err
    assert "(from PATH:1)" in err
    assert "discovery.kubernetes[0].servce: is not a setting; did you mean service? (from PATH:3)" in err


def test_the_environments_settings_are_checked_with_them(check, monkeypatch):
    monkeypatch.setenv("DISPATCHER_POOL__STALL", "5")
    status, _, err = check("pool: {}\n")
    assert status == 2
    assert "DISPATCHER_POOL__STALL: is not a setting; did you mean DISPATCHER_POOL__STALL_S?" in err


def test_an_input_beside_settings_is_checked_too(check, tmp_path):
    rows = tmp_path / "in.jsonl"
    rows.write_text("{}\n")
    status, out, err = check("pool: {}\n", rows)
    assert status == 2
    assert "every setting can be used" in out
    assert "line 1" in err


def test_nothing_to_check_is_a_fault():
    done = CliRunner().invoke(app, ["check"])
    assert done.exit_code == 2
    assert "needs an INPUT, or --config PATH" in done.stderr

"""What docs/peers.md says that we have is there, and each row names the test that shows it."""

import re
from functools import cache
from pathlib import Path

import pytest
import typer

import dispatcher
from dispatcher.annotate.answers import FreeText
from dispatcher.annotate.hugging_face import SCHEME
from dispatcher.annotate.layout import Layout
from dispatcher.cli.commands import app
from dispatcher.config.settings import setting_places
from dispatcher.storage.opening import is_remote

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "peers.md").read_text().split("|---|---|---|---|---|\n")[1].split("\n\n")[0]
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.splitlines()]
OPTIONS = {option for part in typer.main.get_command(app).commands["annotate"].params for option in part.opts}


@cache
def names_of_tests():
    """The names of all tests."""
    files = (ROOT / "tests").rglob("test_*.py")
    return {name for path in files for name in re.findall(r"def (test_\w+)\(", path.read_text())}


def is_there(name):
    if name == "-" or name.startswith("--"):
        return name == "-" or name in OPTIONS
    if name.endswith("://"):
        return name == SCHEME or is_remote(f"{name}a/b")
    if name in {".".join(place) for place in setting_places()}:
        return True
    if name in Layout(FreeText(), "answer", reasoning=False).names:
        return True
    owner, _, member = name.partition(".")
    found = getattr(dispatcher, owner, None)
    return found is not None and (not member or callable(getattr(found, member, None)))


def test_every_row_has_its_cells():
    assert len(ROWS) > 30
    assert {len(row) for row in ROWS} == {5}


@pytest.mark.parametrize("row", [row for row in ROWS if not row[1].startswith("no")], ids=lambda row: row[0])
def test_what_we_have_is_there_and_a_test_shows_it(row):
    names = set(re.findall(r"`([^`]+)`", row[1])) - {"valid"}
    assert {name for name in names if not is_there(name)} == set()
    assert row[4].strip("`") in names_of_tests()


def test_what_we_have_not_is_said_without_a_test():
    assert [row[4] for row in ROWS if row[1].startswith("no")] == [""] * 3

"""Constraints put as a server's version understands them."""

import json

import pytest

from dispatcher.annotate.answers import FreeText, Label, Structured
from dispatcher.annotate.wording import worded
from dispatcher.model import Request

SCHEMA = {"type": "object"}
LABEL, OBJECT = Label(["yes", "no"]), Structured(SCHEMA)


def request(kind):
    body = {"messages": [{"role": "user", "content": "é"}], "temperature": 0, **kind.constraint}
    return Request(0, "0", "/v1/chat/completions", None, json.dumps(body).encode())


def added(kind, version):
    sent = json.loads(worded(request(kind), version).body)
    return {name: value for name, value in sent.items() if name not in {"messages", "temperature"}}


@pytest.mark.parametrize(
    "version", [None, "0.11.0", "0.12.0", "0.32.0+cpu", "0.10.0rc1", "1.0.0", "nonsense"]
)
@pytest.mark.parametrize("kind", [LABEL, OBJECT, FreeText()])
def test_newer_and_unknown_versions_are_asked_as_it_stands(kind, version):
    given = request(kind)
    assert worded(given, version) is given


@pytest.mark.parametrize("version", ["0.5.4", "0.6.1.post2", "0.9.1", "0.10.2"])
def test_older_versions_are_given_guided_choices(version):
    assert added(LABEL, version) == {"guided_choice": ["yes", "no"]}


@pytest.mark.parametrize(
    ("version", "expected"), [("0.6.1", {"guided_json": SCHEMA}), ("0.9.1", dict(OBJECT.constraint))]
)
def test_a_schema_is_spelled_otherwise_only_where_its_format_was_not_known(version, expected):
    assert added(OBJECT, version) == expected


def test_a_request_without_a_constraint_is_the_same_everywhere():
    given = request(FreeText())
    assert worded(given, "0.6.1") is given

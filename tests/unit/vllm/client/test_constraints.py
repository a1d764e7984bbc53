"""Constraints in the spelling of each version, and answers held against them."""

import pytest

from dispatcher import ConfigError, ConstraintIgnoredError, InputError
from dispatcher.vllm.client.constraints import (
    bare_label,
    checked_labels,
    constrains,
    one_of,
    parse_version,
    spelled,
)

SERVER = "http://gpu1:8000"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.32.0", (0, 32)),
        ("0.11.2", (0, 11)),
        ("v0.9.1", (0, 9)),
        ("0.12.0+cpu", (0, 12)),
        ("0.10.1.1", (0, 10)),
        ("0.8.5.post1", (0, 8)),
        ("1.0", (1, 0)),
        ("0.11.2.dev278+gabc", None),
        ("0.12.0rc1", None),
        ("dev", None),
        ("", None),
        (None, None),
    ],
)
def test_only_a_release_tells_what_a_server_understands(text, version):
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("version", "written"),
    [
        ((0, 32), {"structured_outputs": {"choice": ["a", "b"]}}),
        ((0, 12), {"structured_outputs": {"choice": ["a", "b"]}}),
        ((0, 11), {"structured_outputs": {"choice": ["a", "b"]}}),
        ((0, 10), {"guided_choice": ["a", "b"]}),
        ((0, 6), {"guided_choice": ["a", "b"]}),
        (None, {"structured_outputs": {"choice": ["a", "b"]}}),
    ],
)
def test_labels_are_spelled_as_the_version_has_it(version, written):
    body = {"seed": 1, **one_of(["a", "b"])}
    assert spelled(body, version, SERVER, checked=True) == {"seed": 1, **written}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("guided_choice", "choice"),
        ("guided_json", "json"),
        ("guided_regex", "regex"),
        ("guided_grammar", "grammar"),
        ("guided_json_object", "json_object"),
        ("guided_whitespace_pattern", "whitespace_pattern"),
    ],
)
def test_each_constraint_is_put_into_the_other_spelling_where_that_is_needed(old, new):
    guided, structured = {"seed": 1, old: "x"}, {"seed": 1, "structured_outputs": {new: "x"}}
    assert constrains(guided)
    assert constrains(structured)
    for version in ((0, 12), (0, 32)):
        assert spelled(guided, version, SERVER, checked=False) == structured
        assert spelled(structured, version, SERVER, checked=False) == structured
    assert spelled(guided, (0, 9), SERVER, checked=False) == guided
    assert spelled(structured, (0, 9), SERVER, checked=False) == guided
    for both in (guided, structured):
        assert spelled(both, (0, 11), SERVER, checked=False) == both


def test_a_constraint_without_an_older_spelling_is_an_error():
    body = {"structured_outputs": {"structural_tag": "x", "json": None}}
    with pytest.raises(ConstraintIgnoredError, match=r"older than vLLM 0\.11.*structural_tag"):
        spelled(body, (0, 10), SERVER, checked=False)


def test_an_unknown_version_is_an_error_where_nobody_looks_at_the_answer():
    with pytest.raises(ConstraintIgnoredError, match="version="):
        spelled({"guided_regex": "a+"}, None, SERVER, checked=False)


def test_a_response_format_is_no_matter_of_spelling():
    assert not constrains({"response_format": {"type": "json_object"}, "structured_outputs": None})


def test_what_is_no_constraint_is_refused():
    with pytest.raises(InputError, match="mapping"):
        spelled({"structured_outputs": ["a"]}, (0, 32), SERVER, checked=False)


def test_labels_are_checked_all_at_once():
    with pytest.raises(ConfigError) as caught:
        checked_labels(["a", "", "b", "a", 3])
    assert [fault.where for fault in caught.value.faults] == ["labels[1]", "labels[3]", "labels[4]"]
    for wrong in ([], "yes"):
        with pytest.raises(ConfigError, match="labels"):
            checked_labels(wrong)


@pytest.mark.parametrize(
    ("text", "label"), [("yes", "yes"), (" yes", "yes"), ("yes\n", "yes"), ("no", " no"), (" no", " no")]
)
def test_a_label_is_told_in_spite_of_blanks_around_it(text, label):
    assert bare_label(text, ["yes", " no"], "stop", SERVER) == label


@pytest.mark.parametrize("text", ["", "Yes", "yes.", "perhaps", "ye", "yesno", "a"])
def test_free_text_is_never_a_label(text):
    with pytest.raises(ConstraintIgnoredError, match="none of the labels"):
        bare_label(text, ["yes", "no", " a", "a "], "stop", SERVER)


def test_a_label_cut_short_says_so():
    with pytest.raises(ConstraintIgnoredError, match="no tokens left"):
        bare_label("ye", ["yes", "no"], "length", SERVER)

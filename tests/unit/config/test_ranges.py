"""Slurm's notation for ranges of hosts."""

import pytest

from dispatcher.config.ranges import expand_ranges


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu1", ["gpu1"]),
        ("", [""]),
        ("gpu[3]", ["gpu3"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[8-11]", ["gpu8", "gpu9", "gpu10", "gpu11"]),
        ("gpu[08-11]", ["gpu08", "gpu09", "gpu10", "gpu11"]),
        ("gpu[098-101]", ["gpu098", "gpu099", "gpu100", "gpu101"]),
        ("gpu[0-1]", ["gpu0", "gpu1"]),
        ("gpu[01-02, 07,10-11]", ["gpu01", "gpu02", "gpu07", "gpu10", "gpu11"]),
        ("r[1-2]n[5-6]x", ["r1n5x", "r1n6x", "r2n5x", "r2n6x"]),
        ("[1-2][3-4]", ["13", "14", "23", "24"]),
        ("http://gpu1:8[000-002]/v1", ["http://gpu1:8000/v1", "http://gpu1:8001/v1", "http://gpu1:8002/v1"]),
        ("http://[::1]:8000", ["http://[::1]:8000"]),
        ("http://[fe80::1]:800[0-1]", ["http://[fe80::1]:8000", "http://[fe80::1]:8001"]),
    ],
)
def test_brackets_multiply_in_order_and_keep_the_width_of_padded_numbers(text, expected):
    assert expand_ranges(text, 100) == expected


@pytest.mark.parametrize(
    "inner", ["", "a-c", "1-", "-2", "1-2-3", "1,,2", "1-2,", "1 2", "٣-٤", "9999999999"]
)
def test_a_bracket_without_a_range_is_refused(inner):
    with pytest.raises(ValueError, match="where a range such as"):
        expand_ranges(f"gpu[{inner}]", 100)


def test_a_range_that_runs_backwards_is_refused():
    with pytest.raises(ValueError, match="runs backwards: \\[16-01\\]"):
        expand_ranges("gpu[16-01]", 100)


@pytest.mark.parametrize("text", ["gpu[1-101]", "r[1-11]n[1-10]", "gpu[0-999999999]", "[0-999999999]" * 20])
def test_more_texts_than_allowed_are_refused_before_they_are_made(text):
    with pytest.raises(ValueError, match="more than 100"):
        expand_ranges(text, 100)


def test_as_many_texts_as_allowed_are_made():
    assert len(expand_ranges("r[1-10]n[1-10]", 100)) == 100

import re
from random import Random

import pytest

from dispatcher.testing.patterns import UnsupportedPatternError, sample_pattern

PATTERNS = [
    "yes|no|may ?be",
    r"\d{4}-\d{2}-\d{2}",
    "[A-Z][a-z]{2,5}",
    "(?:ab|cd){3}",
    "((a|b)c?)+",
    r"[^a-z]\.\w*",
    r"^\s?[\d\-_]{2,}$",
    "[]a]{3}",
    "a+?b*?",
    "",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("seed", range(20))
def test_a_sample_matches_the_whole_pattern(pattern, seed):
    assert re.fullmatch(pattern, sample_pattern(pattern, Random(seed)))


def test_every_alternative_is_reached():
    assert {sample_pattern("yes|no|both", Random(seed)) for seed in range(50)} == {"yes", "no", "both"}


@pytest.mark.parametrize("pattern", ["(", "[z-a]", r"(?=a)a", r"(a)\1", r"\bword", "(a{10000}){10000}"])
def test_what_cannot_be_sampled_is_refused(pattern):
    with pytest.raises(UnsupportedPatternError):
        sample_pattern(pattern, Random(0))

"""Labels with confidence in a table's rows, of real servers: the same as the client finds."""

import pytest
from real_rows import LABELS, MODEL

from dispatcher import AsyncVLLMClient, Dispatcher
from dispatcher.annotate.confidence import LabelWithConfidence

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

TEXTS = ["the lazy dog.", "a brown fox", "日本 日光", "é è", "hello, hello", "quick!"]
ASKED = "Classify the sentiment of this text: "
AGREEMENT = 1e-3
"""Servers give the same question slightly other floats from call to call, and batch to batch."""


@pytest.mark.parametrize(
    ("labels", "max_calls"),
    [
        (LABELS, 8),
        (LABELS, 1),
        (["p", "posi", "positive", "positive thing"], 60),
        (["é", "è", "日本", "日光", "🙂", "🙃"], 8),
        ([f"{first}{second}" for first in "abcdefghijklmnopqrstuvwxyz" for second in "xyz"], 60),
    ],
    ids=["plain", "plain, one call", "nested", "unicode", "many"],
)
async def test_a_row_s_probabilities_are_those_that_the_client_finds(fleet, labels, max_calls):
    rows = [{"text": text} for text in TEXTS]
    asked = {"prompt": f"{ASKED}{{{{ text }}}}", "labels": labels, "model": MODEL}
    async with (
        Dispatcher(servers=[fleet.first.url, fleet.second.url]) as dispatcher,
        AsyncVLLMClient(fleet.first.url, model=MODEL) as client,
    ):
        found = [
            row
            async for row in dispatcher.annotate(
                iter(rows), **asked, confidence=True, max_calls=max_calls, prefix="a"
            )
        ]
        assert len(found) == len(rows)
        for row in found:
            message = {"role": "user", "content": f"{ASKED}{row['text']}"}
            expected = await client.classify([message], labels, max_calls=max_calls)
            assert row["a_error"] is None
            assert row["a_coverage"] == pytest.approx(expected.coverage, abs=AGREEMENT)
            assert row["a_probabilities"] == pytest.approx(dict(expected.probabilities), abs=AGREEMENT)
            assert row["a_confidence"] == max(row["a_probabilities"].values())
            values = {name.removeprefix("a").removeprefix("_"): value for name, value in row.items()}
            assert LabelWithConfidence(labels).fault(values) is None

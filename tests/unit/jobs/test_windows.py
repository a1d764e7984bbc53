import pytest

from dispatcher.jobs.windows import window_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("24h", 86_400), ("7d", 604_800), ("90m", 5400), ("2s", 2), ("1w", 604_800), ("366d", 31_622_400)],
)
def test_a_window_is_a_number_and_a_unit(text, seconds):
    assert window_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "24", "h", "0h", "-1h", "1.5h", "24 h", "24h ", "367d", "9999999s", "24H", "२h"]
)
def test_anything_else_is_none(text):
    assert window_s(text) is None

"""`--where`."""

import datetime as dt
from decimal import Decimal

import pytest

from dispatcher.annotate.conditions import all_met, parse_condition
from dispatcher.annotate.faults import RowError

ROW = {
    "stars": 3,
    "text": "a = b",
    "cell": "2.5",
    "flag": True,
    "none": None,
    "day": dt.date(2024, 1, 2),
    "a b": 1,
    "at": dt.datetime(2024, 1, 2, 10),  # noqa: DTZ001  # a table's column may have no zone
    "utc": dt.datetime(2024, 1, 2, 10, tzinfo=dt.UTC),
    "told": "2024-01-02 10:00:00.000000000",
    "time": dt.time(10, 30),
    "price": Decimal("1.10"),
    "big": "9007199254740993",
    "tags": ["a"],
}


@pytest.mark.parametrize(
    "text",
    [
        "stars = 3",
        "stars==3",
        "stars >= 3.0",
        "stars < 4",
        "stars != 4",
        "text = a = b",
        'text = "a = b"',
        "cell > 2",
        "flag = true",
        "none = null",
        "stars != null",
        "day >= 2024-01-02",
        "a b = 1",
        "day = 2024-01-02",
        "day >= 2024-01",
        "day != someday",
        "at = 2024-01-02T10:00:00",
        "at = 2024-01-02 10:00",
        "at > 2024-01-02T09:00:00",
        "at >= 2024-01-02",
        "utc = 2024-01-02T11:00:00+01:00",
        "utc < 2024-01-02T10:00:01",
        "told > 2024-01-02T09:00:00",
        "time < 11:00",
        "price = 1.1",
        "price >= 1",
        "big = 9007199254740993",
        "flag = True",
        'tags = ["a"]',
        "tags != a",
        "stars != three",
    ],
)
def test_a_condition_is_met(text):
    assert parse_condition(text).met_by(ROW)


@pytest.mark.parametrize(
    "text",
    [
        "stars > 3",
        "text = a",
        "none != null",
        "none = 1",
        "none < 1",
        "flag = false",
        "day < 2024-01-02",
        "day != 2024-01-02",
        "at < 2024-01-02T09:00:00",
        "told < 2024-01-02T09:00:00",
        "big = 9007199254740992",
        "stars = three",
        "day = someday",
    ],
)
def test_a_condition_is_not_met(text):
    assert not parse_condition(text).met_by(ROW)


def test_all_conditions_must_be_met():
    conditions = [parse_condition("stars = 3"), parse_condition("cell > 3")]
    assert all_met(conditions[:1], ROW)
    assert not all_met(conditions, ROW)


@pytest.mark.parametrize("text", ["", "stars", "= 3", "stars >>> 3", "stars => 3", "stars == = 3"])
def test_what_is_no_condition_is_told(text):
    with pytest.raises(ValueError, match="no condition"):
        parse_condition(text)


@pytest.mark.parametrize(
    "text",
    [
        "size = 1",
        "text > 3",
        "text = 3",
        "stars > three",
        "day > someday",
        "tags > a",
        "at > 2024-01-02T10:00:00Z",
    ],
)
def test_a_row_that_cannot_be_compared_is_told(text):
    with pytest.raises(RowError):
        parse_condition(text).met_by(ROW)

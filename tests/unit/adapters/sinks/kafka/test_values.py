"""Rows as records of a topic: which are none, and that the values of their neighbours stay as they are."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from millrace.adapters.sinks.kafka.values import Records, Target
from millrace.domain.declaration.pipeline import Column, ColumnType

AT, NAME = Column("at", ColumnType.TIMESTAMP), Column("name", ColumnType.STRING)
# The first moment behind the year 9999, one that Arrow prints as 1902, and one that it cannot print
FAR = (253_402_300_800_000_000, 2_066_000_000_000_000_000, 971_890_963_200_000_000, -62_135_596_800_000_001)


def made(at: list[int | None], names: list[bytes | None], deleted: list[bool], *, key: str | None = None) -> Records:
    columns: dict[str, Any] = {
        "at": pa.array(at, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        "name": pa.array(names, pa.binary()).cast(pa.string(), safe=False),
        "_deleted": pa.array(deleted, pa.bool_()),
    }
    target = Target("t", (AT, NAME), key, True, False, 1, 1_000_000, 1_000_000)
    return target.records(pa.RecordBatch.from_pydict(columns))


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("key", [None, "at", "name"])
def test_a_time_that_no_reader_takes_is_refused_and_named(far: int, key: str | None) -> None:
    records = made([0, far, None], [b"a", b"b", b"c"], [False] * 3, key=key)
    assert records.wrong == {1: "the topic t does not take it: `at` lies outside the years 1 to 9999"}
    values = [json.loads(records.values[row] or b"") for row in (0, 2)]
    assert values == [{"at": "1970-01-01T00:00:00.000000Z", "name": "a"}, {"at": None, "name": "c"}]


def test_text_that_is_not_utf8_is_refused_and_named() -> None:
    records = made([0, 0, 0], [b"\xff", None, "é😀".encode()], [False] * 3, key="name")
    assert records.wrong == {0: "the topic t does not take it: `name` is not UTF-8"}
    assert records.keys[1:] == [None, "é😀".encode()]


def test_a_row_that_deletes_needs_a_good_key_and_nothing_else() -> None:
    """Its other columns are not written."""
    by_name = made([FAR[0], 0], [b"a", b"\xff"], [True, True], key="name")
    assert list(by_name.wrong) == [1]
    assert (by_name.keys[0], by_name.values[0]) == (b"a", None)
    by_time = made([FAR[0], 0], [b"a", b"\xff"], [True, True], key="at")
    assert by_time.wrong == {0: "the topic t does not take it: `at` lies outside the years 1 to 9999"}

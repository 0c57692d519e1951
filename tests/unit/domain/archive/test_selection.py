"""What `millrace backup cat` is asked for, and the form of its lines."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.archive.manifest import ObjectEntry
from millrace.domain.archive.records import ArchivedRecord, TimestampType
from millrace.domain.archive.selection import Selection
from millrace.errors import UsageError
from millrace.usecases.archive.cat import line_of
from millrace.usecases.archive.selection import selection_of
from support.archive.read_back import BEGAN_MS, HERE, CountingStore, MemoryArchive, Printed, made
from support.archive.small_archive import OFFSETS, PARTITIONS, ROUNDS, records

TEXTS = st.none() | st.binary(max_size=12) | st.text(max_size=6).map(lambda text: text.encode("utf-8"))
ONCE = made(CountingStore(), HERE)


@pytest.fixture
def archive() -> MemoryArchive:
    return made(CountingStore(), HERE)


def bytes_in(line: dict[str, Any], name: str) -> bytes | None:
    """As docs/reference/archive.md says to read them."""
    if f"{name}_base64" in line:
        assert name not in line
        return base64.b64decode(line[f"{name}_base64"], validate=True)
    return None if line[name] is None else line[name].encode("utf-8")


@given(
    offset=st.integers(0, (1 << 63) - 2),
    timestamp_ms=st.integers(-(1 << 63), (1 << 63) - 1),
    kind=st.sampled_from(TimestampType),
    key=TEXTS,
    value=TEXTS,
    headers=st.lists(st.tuples(st.text(max_size=4), TEXTS), max_size=3).map(tuple),
)
def test_a_line_gives_the_record_back_to_the_bit(**parts: Any) -> None:
    record = ArchivedRecord(*(parts[name] for name in ("offset", "timestamp_ms", "kind", "key", "value", "headers")))
    text = line_of(HERE, 3, record)
    assert text.splitlines() == [text]
    line = json.loads(text.encode("utf-8"))
    assert (line["offset"], line["timestamp_ms"]) == (record.offset, record.timestamp_ms)
    assert TimestampType[line["timestamp_type"].upper()] is record.timestamp_type
    assert (bytes_in(line, "key"), bytes_in(line, "value")) == (record.key, record.value)
    assert [(header["name"], bytes_in(header, "value")) for header in line["headers"]] == list(record.headers)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (None, {"key": None}),
        (b"", {"key": ""}),
        ("Grüße".encode(), {"key": "Grüße"}),
        (b"\xff\x00", {"key_base64": "/wA="}),
        (b"\xc0\x80", {"key_base64": "wIA="}),  # an overlong form: as text it would come back as one byte
        (b"\xed\xa0\x80", {"key_base64": "7aCA"}),  # half of a surrogate pair
        (b"\xef\xbb\xbfx", {"key": "\ufeffx"}),
        (b"a\x00\n\x1b[31m\xc2\x9b", {"key": "a\x00\n\x1b[31m\x9b"}),
    ],
)
def test_bytes_are_text_only_where_that_loses_nothing(data: bytes | None, shown: dict[str, object]) -> None:
    text = line_of(HERE, 0, ArchivedRecord(0, 0, TimestampType.CREATE_TIME, data, b""))
    line = json.loads(text)
    assert {name: line[name] for name in line if name.startswith("key")} == shown
    assert text.isprintable()


@pytest.mark.parametrize(
    ("timestamp_ms", "shown"),
    [
        (-1, None),
        (0, "1970-01-01T00:00:00.000Z"),
        (-2, "1969-12-31T23:59:59.998Z"),
        (253402300799999, "9999-12-31T23:59:59.999Z"),
        (253402300800000, None),
        (-62135596800000, "0001-01-01T00:00:00.000Z"),
        (-62135596800001, None),
        ((1 << 63) - 1, None),
        (-(1 << 63), None),
    ],
)
def test_a_timestamp_is_shown_where_the_calendar_has_it(timestamp_ms: int, shown: str | None) -> None:
    record = ArchivedRecord(0, timestamp_ms, TimestampType.CREATE_TIME, None, None)
    assert json.loads(line_of(HERE, 0, record))["timestamp"] == shown


@pytest.mark.parametrize(
    ("from_", "to", "partition", "expected"),
    [
        (None, None, None, Selection()),
        ("7", None, 1, Selection(1, first=7)),
        (None, "7", 0, Selection(0, next=7)),
        ("0", "9223372036854775807", 0, Selection(0)),
        ("1970-01-01T00:00:01Z", None, None, Selection(from_ms=1000)),
        ("1970-01-01T01:00:01+01:00", "1970-01-01 01:00:02 Europe/Berlin", 2, Selection(2, from_ms=1000, to_ms=2000)),
        ("1970-01-01T00:00:00.000001Z", "1970-01-01T00:00:00.001001Z", None, Selection(from_ms=1, to_ms=2)),
        ("1969-12-31T23:59:59.9995Z", None, None, Selection(from_ms=0)),
        (None, "9999-12-31T23:59:59Z", None, Selection(to_ms=253402300799000)),  # producers write any timestamp
    ],
)
def test_bounds_are_times_or_offsets(from_: str | None, to: str | None, partition: int, expected: Selection) -> None:
    assert selection_of(from_, to, partition=partition) == expected


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"from_": "7"}, "--partition"),
        ({"from_": "7", "to": "2026-01-01T00:00Z", "partition": 0}, "a time and an offset"),
        ({"from_": "7", "to": "7", "partition": 0}, "--from to --to is empty"),
        ({"from_": "2026-01-02T00:00Z", "to": "2026-01-01T00:00Z"}, "--from to --to is empty"),
        ({"from_": "2026-01-02T00:00"}, "no zone"),
        ({"to": "yesterday"}, "is not a time"),
        ({"to": "-5", "partition": 0}, "is not a time"),
        ({"to": "1.5", "partition": 0}, "is not a time"),
        ({"from_": "0001-01-01T00:00+02:00"}, "not within the years"),
        ({"key": "a", "key_base64": "YQ=="}, "twice"),
        ({"key_base64": "a"}, "base64"),
        ({"key_base64": "ä"}, "base64"),
        ({"key": "\udcff"}, "UTF-8"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], named: str) -> None:
    asked = {"from_": None, "to": None} | options
    with pytest.raises(UsageError, match=named):
        selection_of(asked.pop("from_"), asked.pop("to"), **asked)


def test_by_offset_only_objects_that_can_hold_it_are_fetched(archive: MemoryArchive) -> None:
    found = Printed(archive.store, selection=Selection(0, 5, 12))
    assert found.at == [(0, 5), (0, 6), (0, 7), (0, 9), (0, 10), (0, 11)]  # 8 is a marker
    assert archive.store.fetched() == {archive.key(0, 0), archive.key(1, 0)}


def test_an_offset_that_is_a_hole_fetches_nothing(archive: MemoryArchive) -> None:
    assert Printed(archive.store, selection=Selection(0, 8, 9)).lines == []
    assert archive.store.fetched() == set()


def test_by_time_from_counts_and_to_does_not(archive: MemoryArchive) -> None:
    found = Printed(archive.store, selection=Selection(from_ms=BEGAN_MS + 9, to_ms=BEGAN_MS + 11))
    assert sorted(found.at) == [(0, 9), (0, 10), (1, 9), (1, 10)]
    assert archive.store.fetched() == {archive.key(n, p) for n in (0, 1) for p in range(PARTITIONS)}
    archive.store.asked.clear()
    assert len(Printed(archive.store, selection=Selection(1, to_ms=BEGAN_MS + 10)).lines) == OFFSETS - 1
    assert archive.store.fetched() == {archive.key(0, 1)}


@given(
    partition=st.none() | st.integers(0, 2),
    first=st.integers(0, 45),
    width=st.integers(1, 30),
    from_ms=st.none() | st.integers(-2, 45),
    to_ms=st.none() | st.integers(-2, 45),
    key=st.sampled_from([None, b"0/0", b"1/2", b""]),
)
def test_any_selection_is_what_a_look_at_every_record_gives(
    partition: int | None, first: int, width: int, from_ms: int | None, to_ms: int | None, key: bytes | None
) -> None:
    """Of objects, only such that have something of it are fetched, but for the key, which no manifest knows."""
    archive = ONCE
    archive.store.asked.clear()
    times = [None if bound is None else BEGAN_MS + bound for bound in (from_ms, to_ms)]
    asked = Selection(partition, first, first + width, *times, key=key)
    wanted = [
        (number, record, round_)
        for number in range(PARTITIONS)
        for round_ in range(ROUNDS)
        for record in records(number, round_ * OFFSETS)
        if partition in (None, number)
        and first <= record.offset < first + width
        and (times[0] is None or record.timestamp_ms >= times[0])
        and (times[1] is None or record.timestamp_ms < times[1])
    ]
    found = Printed(archive.store, selection=asked)
    assert sorted(found.at) == sorted((n, record.offset) for n, record, _ in wanted if key in (None, record.key))
    assert archive.store.fetched() >= {archive.key(round_, n) for n, _, round_ in wanted}
    fitting = {
        archive.key(r, n) for r, m in enumerate(archive.manifests) for n, e in enumerate(m.objects) if fits(asked, e)
    }
    assert archive.store.fetched() == fitting


def fits(asked: Selection, entry: ObjectEntry) -> bool:
    """Offset by offset, as the manifest alone tells."""
    held = set(range(entry.first, entry.next)) - {o for low, high in entry.holes for o in range(low, high)}
    low, high = entry.min_timestamp_ms, entry.max_timestamp_ms
    assert low is not None
    assert high is not None
    return (
        asked.partition in (None, entry.partition)
        and any(asked.first <= offset < asked.next for offset in held)
        and (asked.from_ms is None or asked.from_ms <= high)
        and (asked.to_ms is None or asked.to_ms > low)
    )


def test_by_key_its_bytes_are_compared(archive: MemoryArchive) -> None:
    assert {partition for partition, _ in Printed(archive.store, selection=Selection(key=b"1/2")).at} == {1}
    assert Printed(archive.store, selection=Selection(key=b"")).at == []


def test_a_limit_stops_the_fetching(archive: MemoryArchive) -> None:
    found = Printed(archive.store, limit=3)
    assert found.at == [(0, 0), (0, 1), (0, 2)]
    assert len(archive.store.fetched()) <= 3  # two are read ahead


def test_records_without_a_timestamp_are_left_out_by_time_and_counted() -> None:
    archive = MemoryArchive(CountingStore(), HERE, "", None)
    archive.build_of([[BEGAN_MS, -1, BEGAN_MS + 2, -1], [-1, -1], [BEGAN_MS - 9, -1]])
    found = Printed(archive.store, selection=Selection(from_ms=BEGAN_MS))
    assert found.at == [(0, 0), (0, 2)]
    assert found.told == [
        "4 records without a timestamp were left out",
        "1 unread objects may also hold records without a timestamp",
    ]
    assert Printed(archive.store).at == [(0, offset) for offset in range(8)]
    around = Printed(archive.store, selection=Selection(from_ms=-5, to_ms=5))
    assert (around.at, around.told) == ([], ["5 records without a timestamp were left out"])

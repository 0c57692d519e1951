"""A record without a value deletes its key where the topic says so, and nothing else of decoding changes by that."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.declaration.pipeline import Column, ColumnType, Key, ValueFormat, ValueSchema
from millrace.domain.quarantine.rules import Rule
from millrace.runtime.formats.decoded import Decoded
from millrace.runtime.formats.registry import decoder_of

COLUMNS = (
    Column("note", ColumnType.STRING),
    Column("id", ColumnType.STRING, required=True),
    Column("amount", ColumnType.DECIMAL, required=True, precision=12, scale=2),
    Column("at", ColumnType.TIMESTAMP),
    Column("ratio", ColumnType.FLOAT),
)
KEY = Key("id")
DELETING = decoder_of(ValueSchema(ValueFormat.JSON, COLUMNS, tombstones=True), KEY)
ORDINARY = decoder_of(ValueSchema(ValueFormat.JSON, COLUMNS), KEY)
FINE = b'{"note":null,"id":"a","amount":1.5,"at":"2026-01-31T10:00:00.123456789Z","ratio":0.5}'
TOO_LATE_MS = 253_402_300_800_000

Row = tuple[object, ...]


def rows(found: Decoded) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def decode(*values: bytes | None, key: bytes | None = b"a", timestamp: int | None = 0) -> Decoded:
    return DELETING.decode(values, [key] * len(values), [timestamp] * len(values))


def test_a_record_without_a_value_is_its_key_and_nothing_else() -> None:
    found = decode(None, key="k\u00fc1".encode())
    assert rows(found) == [(None, "k\u00fc1", None, None, None, True)]
    assert (found.rules, found.errors, found.truncated) == ([None], [None], [False])


def test_an_empty_key_is_a_key() -> None:
    assert rows(decode(None, key=b"")) == [(None, "", None, None, None, True)]


@pytest.mark.parametrize(
    ("key", "timestamp", "rule", "told"),
    [
        (None, 0, Rule.NULL_KEY, "the record has none"),
        (None, -1, Rule.NULL_KEY, "the record has none"),
        (b"k", None, Rule.NO_TIMESTAMP, "None ms"),
        (b"k", -1, Rule.NO_TIMESTAMP, "-1 ms"),
        (b"\xff", -1, Rule.NO_TIMESTAMP, "-1 ms"),
        (b"k", TOO_LATE_MS, Rule.FAR_TIMESTAMP, "after the year 9999"),
        (b"k\xff", 0, Rule.INVALID_UTF8, "the key is not UTF-8: invalid start byte at byte 1"),
        (b"\xed\xa0\x80", 0, Rule.INVALID_UTF8, "at byte 0"),
        (b"k\0", 0, Rule.NUL_CHARACTER, "for `id`, holds the character U+0000"),
    ],
)
def test_one_that_cannot_say_what_it_deletes_is_bad(
    key: bytes | None, timestamp: int | None, rule: Rule, told: str
) -> None:
    found = decode(None, key=key, timestamp=timestamp)
    assert (rows(found), found.rules) == ([(None, None, None, None, None, False)], [rule])
    assert told in (found.errors[0] or "")


def test_a_value_of_no_bytes_deletes_nothing() -> None:
    found = decode(b"")
    assert (rows(found), found.rules) == ([(None, None, None, None, None, False)], [Rule.EMPTY_VALUE])


def test_deletes_bad_records_and_good_ones_leave_one_another_alone() -> None:
    values = (None, FINE, b"nope", None, FINE.replace(b"1.5", b"1.555"), FINE, FINE)
    keys = (b"k", b"a", b"a", b"a", b"a", b"k", b"a")
    found = DELETING.decode(values, keys, [0] * len(values))
    assert found.rules == [None, None, Rule.NOT_JSON, None, Rule.OUT_OF_RANGE, Rule.KEY_MISMATCH, None]
    assert [row[1] for row in rows(found)] == ["k", "a", None, "a", None, None, "a"]
    assert found.columns[-1].to_pylist() == [True, False, False, True, False, False, False]
    assert found.truncated == [False, True, False, False, False, False, True]


NO_ROW = (None, None, None, None, None, False)
OTHER_KEYS = [
    b'"a"',
    b'{"id":"a"}',
    b'{"schema":null,"payload":"a"}',
    b"a ",
    b" a",
    b"\xef\xbb\xbfa",
    b"A",
    b"",
    b"a\0",
    b"\xff",
]


@pytest.mark.parametrize("key", OTHER_KEYS)
def test_a_record_whose_key_is_not_what_its_value_says_is_bad(key: bytes) -> None:
    found = decode(FINE, key=key)
    assert (rows(found), found.rules, found.truncated) == ([NO_ROW], [Rule.KEY_MISMATCH], [False])
    assert found.errors == [
        "the record's key is not what the field `id` says: a record without a value that has this key would delete "
        "another row, or none"
    ]
    beside = DELETING.decode([FINE, FINE, None], [b"a", key, b"a"], [0] * 3)
    assert beside.rules == [None, Rule.KEY_MISMATCH, None]
    assert [row[1] for row in rows(beside)] == ["a", None, "a"]


@pytest.mark.parametrize("text", ["", "k\u00fc1", "\ufeffa", "\U0001f600", '"a"', " "])
def test_the_bytes_of_the_text_are_its_key_however_json_spells_them(text: str) -> None:
    for spelled in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
        found = decode(FINE.replace(b'"a"', spelled.encode()), key=text.encode())
        assert (rows(found)[0][1], found.rules) == (text, [None])


@pytest.mark.parametrize("value", [b"{}", b'{"id":null}', b'{"ID":"a"}'])
def test_a_key_of_which_the_value_says_nothing_is_another_key(value: bytes) -> None:
    decoder = decoder_of(ValueSchema(ValueFormat.JSON, (Column("id", ColumnType.STRING),), tombstones=True), KEY)
    found = decoder.decode([value, value, b'{"id":"a"}'], [b"a", None, b"a"], [0] * 3)
    assert found.rules == [Rule.KEY_MISMATCH, Rule.NULL_KEY, None]
    assert rows(found) == [(None, False), (None, False), ("a", False)]


def test_what_is_wrong_with_a_value_comes_before_its_key() -> None:
    found = decode(b"nope", FINE.replace(b"1.5", b"1.555"), FINE, key=b"other")
    assert found.rules == [Rule.NOT_JSON, Rule.OUT_OF_RANGE, Rule.KEY_MISMATCH]


def test_without_tombstones_it_is_a_bad_record() -> None:
    found = ORDINARY.decode([None], [b"k"], [0])
    assert (len(found.columns), found.rules) == (len(COLUMNS), [Rule.NULL_VALUE])


VALUES = st.one_of(
    st.sampled_from(
        [
            b"",
            b"nope",
            FINE,
            FINE.replace(b'"note":null', b'"note":"x"'),
            FINE.replace(b'"note":null', b'"note":"\\u0000"'),
            FINE.replace(b'"a"', b'"\xff"'),
            FINE.replace(b"1.5", b"1.555"),
            FINE.replace(b"0.5", b"1e39"),
            FINE.replace(b'"2026-01-31T10:00:00.123456789Z"', b'"0001-01-01T00:00:00+14:00"'),
            FINE[:-1] + b',"id":"b"}',
        ]
    ),
    st.binary(max_size=20),
)
TIMES = st.sampled_from([0, 0, 0, 1_769_000_000_000, -1, TOO_LATE_MS, None])
KEYS = st.one_of(st.sampled_from([b"a", b"a", b"a", None, b"k", b"\xff", b"k\0"]), st.text(max_size=3).map(str.encode))
RECORDS = st.lists(st.tuples(st.none() | VALUES, KEYS, TIMES), max_size=12)


@given(RECORDS)
def test_of_every_record_with_a_value_and_its_key_both_decoders_say_the_same(
    records: Sequence[tuple[bytes | None, bytes | None, int | None]],
) -> None:
    values, keys, times = ([record[part] for record in records] for part in range(3))
    deleting = DELETING.decode(values, keys, times)  # type: ignore[arg-type]
    ordinary = ORDINARY.decode(values, keys, times)  # type: ignore[arg-type]
    deleted = deleting.columns[-1].to_pylist()
    assert [column.type for column in deleting.columns[:-1]] == [column.type for column in ordinary.columns]
    assert not any(column.null_count for column in deleting.columns[-1:])
    for row, value in enumerate(values):
        if value is None:
            assert ordinary.rules[row] is Rule.NULL_VALUE
            assert deleted[row] is (deleting.rules[row] is None) is (deleting.errors[row] is None)
            assert rows(deleting)[row][1] == (keys[row].decode() if deleted[row] else None)  # type: ignore[union-attr]
        elif ordinary.rules[row] is None and keys[row] != rows(ordinary)[row][1].encode():  # type: ignore[attr-defined]
            assert (deleting.rules[row], deleting.truncated[row]) == (Rule.KEY_MISMATCH, False)
            assert rows(deleting)[row] == NO_ROW
        else:
            assert rows(deleting)[row] == (*rows(ordinary)[row], False)
            told = (deleting.rules[row], deleting.errors[row], deleting.truncated[row])
            assert told == (ordinary.rules[row], ordinary.errors[row], ordinary.truncated[row])

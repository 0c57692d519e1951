"""TIMESTAMP holds microseconds: what is finer is cut off, never rounded to a time that was not written."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.declaration.pipeline import Column, ColumnType, ValueFormat, ValueSchema
from millrace.domain.quarantine.rules import Rule
from millrace.runtime.formats.decoded import Decoded
from millrace.runtime.formats.json.decoder import Decoder

SCHEMA = ValueSchema(
    ValueFormat.JSON,
    (
        Column("note", ColumnType.STRING),
        Column("at", ColumnType.TIMESTAMP, required=True),
        Column("until", ColumnType.TIMESTAMP),
        Column("ratio", ColumnType.DOUBLE),
    ),
)
DECODER = Decoder(SCHEMA, key_required=False)


def decoded(*values: bytes) -> Decoded:
    return DECODER.decode(values, [b"k"] * len(values), [0] * len(values))


def at(text: str, **fields: object) -> bytes:
    return json.dumps({"note": None, "at": text, "until": None, "ratio": None} | fields).encode()


@pytest.mark.parametrize(
    ("text", "microsecond"),
    [
        ("2026-01-31T23:59:59.999999999Z", 999_999),
        ("2026-01-31T23:59:59.9999995Z", 999_999),
        ("2026-01-31t23:59:59.123456789z", 123_456),
        ("2026-01-31 23:59:59.000000999", 0),
        ("2026-01-31T23:59:59.12345650000000000000000000Z", 123_456),
    ],
)
def test_what_is_finer_than_a_microsecond_is_cut_off(text: str, microsecond: int) -> None:
    found = decoded(at(text))
    assert found.columns[1].to_pylist() == [datetime(2026, 1, 31, 23, 59, 59, microsecond, tzinfo=UTC)]
    assert (found.rules, found.truncated) == ([None], [True])


def test_the_last_moment_of_the_year_9999_is_one() -> None:
    """As .NET writes its greatest DateTime; rounded, it would be in the year 10000."""
    found = decoded(at("9999-12-31T23:59:59.9999999Z"))
    assert found.columns[1].to_pylist() == [datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)]


def test_only_records_that_lost_something_are_counted() -> None:
    fine, plain = "2026-01-31T10:00:00.123456789Z", "2026-01-31T10:00:00.123456Z"
    found = decoded(at(plain), at(fine), at(plain, until=fine), b"nope", at(plain, ratio=0.123456789))
    assert found.truncated == [False, True, True, False, False]
    assert [rule is None for rule in found.rules] == [True, True, True, False, True]


def test_zeros_behind_the_sixth_digit_are_no_loss() -> None:
    """Some writers always give seven or nine digits; a count of all their records would hide those that lost some."""
    found = decoded(at("2026-01-31T10:00:00.1230000Z"), at("2026-01-31T10:00:00.123000001Z"))
    assert found.columns[1].to_pylist() == [datetime(2026, 1, 31, 10, 0, 0, 123_000, tzinfo=UTC)] * 2
    assert found.truncated == [False, True]


def test_a_record_that_is_bad_for_another_reason_is_not_counted() -> None:
    found = decoded(at("2026-01-31T10:00:00.123456789Z", note="a\0b"))
    assert (found.rules, found.truncated) == ([Rule.NUL_CHARACTER], [False])


def test_a_text_that_looks_like_a_time_stays_as_it_is() -> None:
    text = "seen at 10:00:00.123456789"
    found = decoded(at("2026-01-31T10:00:00Z", note=text))
    assert found.columns[0].to_pylist() == [text]
    assert found.truncated == [False]


def test_a_time_is_the_same_with_its_digits_escaped() -> None:
    escaped = "".join(f"\\u{ord(sign):04x}" for sign in "2026-01-31T10:00:00.1234569Z")
    found = decoded(b'{"note":null,"at":"%s","until":null,"ratio":null}' % escaped.encode())
    assert found.columns[1].to_pylist() == [datetime(2026, 1, 31, 10, 0, 0, 123_456, tzinfo=UTC)]
    assert found.truncated == [True]


@pytest.mark.parametrize(
    "text", ["2026-13-31T10:00:00.123456789Z", "2026-01-31T10:00:00.123456789+99:00", "x.123456789"]
)
def test_a_time_that_is_none_is_as_bad_as_without_the_digits(text: str) -> None:
    found = decoded(at(text), at(text.replace("456789", "")))
    assert found.rules[0] is found.rules[1]
    assert found.rules[0] is not None


@pytest.mark.parametrize("text", ["2026-01-31T10:00:00.123456\u0663Z", "2026-01-31T10:00:\u0660\u0660.123456\u0663Z"])
def test_a_digit_of_another_script_is_none_whatever_stands_beside_it(text: str) -> None:
    fine = "2026-01-31T10:00:00.123456789Z"
    wrong, right = (
        json.dumps({"note": "", "at": time, "until": fine, "ratio": 1}, ensure_ascii=False).encode()
        for time in (text, fine)
    )
    for values in ([wrong], [wrong, right]):
        found = decoded(*values)
        assert (found.rules[0], found.truncated[0]) == (Rule.WRONG_TYPE, False)
        assert found.columns[1][0].as_py() is None


GREATEST = '"9999-12-31T23:59:59.9999999Z"'  # of .NET; no error may blame it


@pytest.mark.parametrize(
    ("value", "rule", "error"),
    [
        ('{"at":"\udcff","note":"10:00:00.1234567"}', Rule.INVALID_UTF8, "at byte 7"),
        ('{"at":"x","note":"10:00:00.1234567","until":nope}', Rule.NOT_JSON, "(byte 44)"),
        ('{"at":GREATEST,"until":nope}', Rule.NOT_JSON, "(byte 45)"),
        ('{"at":GREATEST,"until":"x"}', Rule.WRONG_TYPE, "the field `until` has not the form YYYY-MM-DD"),
        ('{"at":GREATEST,"note":5}', Rule.WRONG_TYPE, "Expected `str | null`, got `int` - at `$.note`"),
        ('{"until":GREATEST}', Rule.MISSING_FIELD, "missing required field `at`"),
        ('{"at":["2026-01-31T10:00:00.1234567Z"]}', Rule.WRONG_TYPE, "Expected `datetime`, got `array` - at `$.at`"),
    ],
)
def test_what_is_wrong_beside_a_fine_time_is_told_as_without_one(value: str, rule: Rule, error: str) -> None:
    found = decoded(value.replace("GREATEST", GREATEST).encode(errors="surrogateescape"))
    assert found.rules == [rule]
    assert error in (found.errors[0] or "")


@given(
    st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29)),
    st.text("0123456789", min_size=1, max_size=12),
    st.integers(-23 * 60, 23 * 60),
)
def test_whatever_digits_follow_the_sixth_they_change_nothing(moment: datetime, more: str, offset: int) -> None:
    zoned = moment.replace(tzinfo=timezone(timedelta(minutes=offset)))
    text = f"{zoned:%H:%M:%S}.{zoned.microsecond:06d}{more}{zoned.isoformat()[-6:]}"
    found = decoded(at(f"{zoned.date().isoformat()}T{text}"))
    assert found.columns[1].to_pylist() == [zoned.astimezone(UTC)]
    assert found.truncated == [bool(more.strip("0"))]


@given(
    st.text("09", min_size=1, max_size=20) | st.text("0123456789", min_size=1, max_size=20),
    st.sampled_from("Tt "),
    st.sampled_from(["", "Z", "z", "+00:00", "-00:00"]),
    st.booleans(),
)
def test_a_time_is_never_later_than_written(digits: str, separator: str, zone: str, escaped: bool) -> None:
    text = f"2026-01-31{separator}23:59:59.{digits}{zone}"
    value = at("?").replace(b"?", "".join(f"\\u{ord(sign):04x}" for sign in text).encode()) if escaped else at(text)
    found = decoded(value)
    [time] = found.columns[1].to_pylist()
    lost = Fraction(int(digits), 10 ** len(digits)) - Fraction(time.microsecond, 10**6)
    assert time.replace(microsecond=0) == datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)
    assert 0 <= lost < Fraction(1, 10**6)
    assert found.truncated == [lost > 0]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "2026-01-31T10:00:00.5Z",
                    "2026-01-31T10:00:00.9999999Z",
                    "x:00.9999999",
                    "2026-01-31T10:00:00.123456\u0663Z",
                ]
            ),
            st.sampled_from(["x", "10:00:00.1234567", "\x00", "\\u0030"]),
        ),
        max_size=4,
    )
)
def test_a_record_is_decoded_the_same_alone_and_among_others(records: list[tuple[str, str]]) -> None:
    values = [at(time, note=note, until=time, ratio=1) for time, note in records]
    together, alone = decoded(*values), [decoded(value) for value in values]
    assert together.rules == [each.rules[0] for each in alone]
    assert together.errors == [each.errors[0] for each in alone]
    assert together.truncated == [each.truncated[0] for each in alone]
    for index, column in enumerate(together.columns):
        assert column.to_pylist() == [each.columns[index][0].as_py() for each in alone]


@pytest.mark.parametrize("milliseconds", [253_402_300_800_000, 1_764_000_000_000_000, 2**63 - 1])
def test_a_record_timestamp_after_the_year_9999_is_bad(milliseconds: int) -> None:
    value = at("2026-01-31T10:00:00Z")
    found = DECODER.decode([value, value], [b"k", b"k"], [253_402_300_799_999, milliseconds])
    assert found.rules == [None, Rule.FAR_TIMESTAMP]
    assert str(milliseconds) in (found.errors[1] or "")

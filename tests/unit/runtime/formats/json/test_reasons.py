"""Times as the reference says; reasons that say what is wrong, where, and what to do."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from millrace.domain.declaration.pipeline import Column, ColumnType, ValueFormat, ValueSchema
from millrace.domain.quarantine.rules import Rule
from millrace.runtime.formats.decoded import RecordDecoder
from millrace.runtime.formats.plain_decoder import plain_decoder_of
from millrace.runtime.formats.registry import decoder_of

REFERENCE = Path(__file__).resolve().parents[5] / "docs/reference/records.md"
SCHEMA = ValueSchema(
    ValueFormat.JSON,
    (
        Column("day", ColumnType.DATE),
        Column("at", ColumnType.TIMESTAMP),
        Column("note", ColumnType.STRING),
        Column("number", ColumnType.BIGINT),
        Column("amount", ColumnType.DECIMAL, precision=12, scale=2),
        Column("ratio", ColumnType.DOUBLE),
    ),
)
FAST, PLAIN = decoder_of(SCHEMA, None), plain_decoder_of(SCHEMA, None)
Both = pytest.mark.parametrize("decoder", [FAST, PLAIN], ids=["fast", "plain"])


def times() -> list[tuple[str, str, str]]:
    """The table of times: a text, and what becomes of it as DATE and as TIMESTAMP."""
    table = REFERENCE.read_text(encoding="utf-8").partition("| text | DATE | TIMESTAMP |")[2]
    rows = ([cell.strip() for cell in row.strip("|").split("|")] for row in table.partition("\n\n")[0].splitlines()[2:])
    return [(text.strip("`"), day, time) for text, day, time in rows]


def said(decoder: RecordDecoder, value: str | bytes) -> tuple[list[object], Rule | None, str, bool]:
    found = decoder.decode([value.encode() if isinstance(value, str) else value], [None], [0])
    return [column[0].as_py() for column in found.columns], found.rules[0], found.errors[0] or "", found.truncated[0]


def test_the_table_is_read_whole() -> None:
    assert len(times()) == 32
    assert {day for _, day, _ in times()} == {"2023-06-15", "`wrong_type`", "`out_of_range`"}


@Both
@pytest.mark.parametrize(("text", "day", "time"), times())
def test_a_text_becomes_the_date_that_the_reference_says(
    decoder: RecordDecoder, text: str, day: str, time: str
) -> None:
    row, rule, _, _ = said(decoder, json.dumps({"day": text}))
    assert (row[0], rule) == ((None, Rule(day.strip("`"))) if "`" in day else (date.fromisoformat(day), None))


@Both
@pytest.mark.parametrize(("text", "day", "time"), times())
def test_a_text_becomes_the_time_that_the_reference_says(
    decoder: RecordDecoder, text: str, day: str, time: str
) -> None:
    full = {"day": "2026-01-31", "at": text, "note": "x", "number": 1, "amount": 1, "ratio": 1}
    for document in (json.dumps({"at": text}), json.dumps(full, separators=(",", ":"))):
        row, rule, _, truncated = said(decoder, document)
        if "`" in time:
            assert (row[1], rule, truncated) == (None, Rule(time.strip("`")), False)
        else:
            shown, _, cut = time.partition(", ")
            assert (row[1], rule) == (datetime.fromisoformat(shown).replace(tzinfo=UTC), None)
            assert truncated is (cut == "truncated")


def test_the_reason_of_a_wrong_form_names_the_form_and_the_text() -> None:
    assert "`day` has not the form YYYY-MM-DD: '15/06/2023'" in said(FAST, '{"day":"15/06/2023"}')[2]
    assert "`at` has not the form YYYY-MM-DDThh:mm:ssZ: '15/06/2023'" in said(FAST, '{"at":"15/06/2023"}')[2]
    _, rule, error, _ = said(FAST, '{"day":"1997-02-30"}')
    assert rule is Rule.OUT_OF_RANGE
    assert "`day` names no DATE: '1997-02-30' (day is out of range for month)" in error


@pytest.mark.parametrize("number", ["1686825020", "1686825020123", "1686825020.5", "-1"])
def test_a_number_for_a_time_is_of_the_wrong_type_and_advised_to_be_bigint(number: str) -> None:
    _, rule, error, _ = said(FAST, f'{{"at":{number}}}')
    assert rule is Rule.WRONG_TYPE
    assert "at `$.at`" in error
    assert "BIGINT" in error
    assert "BIGINT" not in said(FAST, f'{{"note":{number}}}')[2]


DIGITS = "1" * 5_000


@Both
@pytest.mark.parametrize(
    "value", [DIGITS, f"-{DIGITS}", f"[{DIGITS}]", f'{{"deep":{DIGITS}}}', f"{DIGITS}.5e9", f"1e{DIGITS}"]
)
def test_a_number_of_any_length_that_is_ignored_is_fine(decoder: RecordDecoder, value: str) -> None:
    row, rule, error, _ = said(decoder, f'{{"note":"x","new":{value}}}')
    assert (row[2], rule, error) == ("x", None, "")


@Both
@pytest.mark.parametrize("field", ["number", "amount", "ratio"])
def test_a_number_of_any_length_in_a_column_is_out_of_range(decoder: RecordDecoder, field: str) -> None:
    for more in ("", f',"new":{DIGITS}', ',"new":1'):
        _, rule, error, _ = said(decoder, f'{{"{field}":{DIGITS}{more}}}')
        assert rule is Rule.OUT_OF_RANGE
        assert "set_int_max_str_digits" not in error
        assert len(error) < 500


@Both
@pytest.mark.parametrize("field", ["note", "day", "at"])
def test_a_number_of_any_length_for_a_text_is_of_the_wrong_type(decoder: RecordDecoder, field: str) -> None:
    for number in (DIGITS, "1e400", "-1e400"):
        assert said(decoder, f'{{"{field}":{number}}}')[1] is Rule.WRONG_TYPE


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ('{"a":1,"a":2}', "`a` appears more than once"),
        ('{"x":{"a":1,"a":2}}', "`a` appears more than once, in `$.x`"),
        ('{"x":{"a":1,"\\u0061":2}}', "`a` appears more than once, in `$.x`"),
        ('{"x":[0,{"y":{"a":1,"b":2,"a":3}}],"note":"n"}', "`a` appears more than once, in `$.x[1].y`"),
        ('{"x":{"y":{"b":1,"b":2}},"z":{"a":1,"a":2}}', "`b` appears more than once, in `$.x.y`"),
    ],
)
def test_the_reason_says_where_a_name_is_doubled(value: str, where: str) -> None:
    _, rule, error, _ = said(FAST, value)
    assert rule is Rule.DUPLICATE_FIELD
    assert error == f"the field {where}"
    assert said(PLAIN, value)[1] is Rule.DUPLICATE_FIELD


@pytest.mark.parametrize(
    "half", ["\\ud83d", "x\\ud83d", "\\ud83dx", "\\ude00", "\\ud83d\\u0041", "\\\\\\ud83d", "\\ud83d\\ude00\\ud83d"]
)
@pytest.mark.parametrize(
    "document",
    ['{"note":"HALF"}', '{"note":"x","new":"HALF"}', '{"note":"x","HALF":1}', '{"note":"\u00fc","new":["HALF"]}'],
)
def test_half_of_an_emoji_has_a_reason_of_its_own(half: str, document: str) -> None:
    value = document.replace("HALF", half)
    before = document.index("HALF") + half.rindex("\\ud")
    _, rule, error, _ = said(FAST, value)
    assert rule is Rule.NOT_JSON
    assert "half of a surrogate pair" in error
    at = len(value[:before].encode())
    assert f"(byte {at})" in error
    assert said(PLAIN, value)[1] is Rule.NOT_JSON


@pytest.mark.parametrize(
    ("value", "byte"),
    [
        (b'{"note":"\xc3\xbc","number":nope}', 22),
        (b'{"new":"\xc3\xbc","number":1}x', 23),
        (b'{"note":"\xc3\xbc\xff"}', 11),
        (b'{"note":"x","new":"\xc3\xbc\xff"}', 21),
        (b'{"note":"x","\xff":1}', 13),
        (b'{"note":5,"x":"\xc3\xbc","y":nope}', 23),
    ],
)
def test_positions_are_bytes_from_the_beginning_of_the_value(value: bytes, byte: int) -> None:
    assert re.findall(r"byte (\d+)", said(FAST, value)[2]) == [str(byte)]


@pytest.mark.parametrize("end", [1, 5, 8, 9, 12, 20, 31])
def test_a_value_that_ends_too_early_is_told_as_truncated(end: int) -> None:
    value = b'{"note":"a b","new":[1,{"x":2}]}'[:end]
    _, rule, error, _ = said(FAST, value)
    assert rule is Rule.NOT_JSON
    assert "the value is truncated" in error


@Both
def test_what_is_not_utf8_or_not_json_comes_before_what_is_wrong_with_a_field(decoder: RecordDecoder) -> None:
    assert said(decoder, b'{"note":5,"new":"\xff"}')[1] is Rule.INVALID_UTF8
    assert said(decoder, b'{"note":5,"note":6,"new":"\xff"}')[1] is Rule.INVALID_UTF8
    assert said(decoder, b'{"note":5,"new":"\xff"')[1] is Rule.NOT_JSON
    assert said(decoder, b'{"note":"\xc3')[1] is Rule.NOT_JSON
    assert said(decoder, b'{"note":5,"note":6,"new":nope}')[1] is Rule.NOT_JSON
    assert said(decoder, b'{"note":5,"note":6}')[1] is Rule.DUPLICATE_FIELD
    assert said(decoder, b'{"x":{"a":1,"a":1},"new":nope}')[1] is Rule.NOT_JSON


@Both
@pytest.mark.parametrize(("depth", "rule"), [(499, None), (500, Rule.NOT_JSON), (5_000, Rule.NOT_JSON)])
def test_nesting_has_a_bound(decoder: RecordDecoder, depth: int, rule: Rule | None) -> None:
    """The object of the record is one level."""
    for value in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        assert said(decoder, b'{"note":"[[","new":%b}' % value)[1] is rule

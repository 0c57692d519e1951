"""Decoding is strict: every kind of bad record is named, every good one is exact."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.declaration.pipeline import Column, ColumnType, Key, ValueFormat, ValueSchema
from millrace.domain.quarantine.rules import Rule
from millrace.runtime.formats.decoded import BadRecordError
from millrace.runtime.formats.json.decoder import Decoder
from millrace.runtime.formats.plain_decoder import plain_decoder_of
from millrace.runtime.formats.registry import decoder_of
from support.formats.bad_values import BAD, GOOD, NOTED_PURCHASE, changed


def decode_one(value, schema=NOTED_PURCHASE, key=b"7", timestamp=0):
    decoded = Decoder(schema, key_required=True).decode([value], [key], [timestamp])
    return tuple(column[0].as_py() for column in decoded.columns), decoded.rules[0], decoded.errors[0]


def test_a_good_record_is_exact():
    row, rule, error = decode_one(changed())
    assert (rule, error) == (None, None)
    assert row == ("x", "7", date(1997, 1, 1), 2, Decimal("11.77"))


def test_pretty_printed_unknown_fields_and_a_missing_optional_field_are_fine():
    document = {k: v for k, v in GOOD.items() if k != "note"} | {"extra": {"deep": [1, {"a": 1}]}}
    row, rule, _ = decode_one(json.dumps(document, indent=2).encode())
    assert rule is None
    assert row[0] is None


@pytest.mark.parametrize(("value", "rule"), BAD, ids=[f"{rule}-{n}" for n, (_, rule) in enumerate(BAD)])
def test_a_bad_record_is_named(value, rule):
    row, found, error = decode_one(value)
    assert found is rule
    assert error
    assert row == (None,) * 5


@pytest.mark.parametrize("make", [decoder_of, plain_decoder_of], ids=["fast", "plain"])
def test_each_reason_of_a_bad_record_is_an_arrow_string(make):
    values = [value for value, _ in BAD]
    found = make(NOTED_PURCHASE, Key("customer_id")).decode(values, [b"7"] * len(values), [0] * len(values))
    reasons = pa.array(found.errors, pa.string())
    reasons.validate(full=True)
    assert reasons.null_count == 0


@pytest.mark.parametrize("half", [0xD800, 0xDBFF, 0xDC00, 0xDFFF], ids=hex)
def test_a_reason_with_half_of_a_surrogate_pair_says_it_as_an_escape(half):
    message = f"the field `{chr(half)}` appears more than once, in `$.{chr(half)}.\U0001f600`"
    (reason,) = pa.array([str(BadRecordError(Rule.DUPLICATE_FIELD, message))], pa.string()).to_pylist()
    escape = f"\\u{half:04x}"
    assert reason == f"the field `{escape}` appears more than once, in `$.{escape}.\U0001f600`"


def test_key_and_timestamp_are_part_of_the_record():
    assert decode_one(changed(), key=None)[1] is Rule.NULL_KEY
    assert decode_one(changed(), timestamp=-1)[1] is Rule.NO_TIMESTAMP
    assert Decoder(NOTED_PURCHASE, key_required=False).decode([changed()], [None], [0]).rules == [None]
    found = Decoder(NOTED_PURCHASE, key_required=False).decode([changed(), None, changed()], [None] * 3, [0, 0, -1])
    assert found.rules == [None, Rule.NULL_VALUE, Rule.NO_TIMESTAMP]


def test_an_escaped_backslash_before_u0000_is_text():
    row, rule, _ = decode_one(changed(customer_id="\\u0000"))
    assert (row[1], rule) == ("\\u0000", None)


def test_bad_records_leave_their_neighbours_alone():
    values = [changed(amount=1.559), changed(amount=2.5), b"nope", changed(amount="3.100")]
    decoded = Decoder(NOTED_PURCHASE, key_required=False).decode(values, [None] * 4, [0] * 4)
    assert decoded.rules == [Rule.OUT_OF_RANGE, None, Rule.NOT_JSON, None]
    assert decoded.columns[4].to_pylist() == [None, Decimal("2.50"), None, Decimal("3.10")]
    assert decoded.columns[1].to_pylist() == [None, "7", None, "7"]


def test_timestamps_are_utc_and_their_edges_are_named():
    schema = ValueSchema(ValueFormat.JSON, (Column("at", ColumnType.TIMESTAMP, required=True),))
    assert decode_one(b'{"at":"2020-01-01T02:00:00+02:00"}', schema)[0] == (datetime(2020, 1, 1, tzinfo=UTC),)
    assert decode_one(b'{"at":"2020-01-01T00:00:00"}', schema)[0] == (datetime(2020, 1, 1, tzinfo=UTC),)
    assert decode_one(b'{"at":"0001-01-01T00:00:00+14:00"}', schema)[1] is Rule.OUT_OF_RANGE


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**13), max_value=10**13))
def test_a_decimal_is_kept_exactly_or_refused(value):
    row, rule, _ = decode_one(changed(amount=str(value)))
    fits = value == round(value, 2) and abs(value) < 10**10
    assert rule is (None if fits else Rule.OUT_OF_RANGE)
    if fits:
        assert row[4] == value


@given(st.binary(max_size=200))
def test_garbage_never_raises(value):
    assert decode_one(value)[1] is not None


@given(
    st.fixed_dictionaries({"customer_id": st.text(), "quantity": st.integers(-(2**31), 2**31 - 1)}),
)
def test_text_and_integers_round_trip(fields):
    row, rule, _ = decode_one(changed(**fields))
    if "\0" in fields["customer_id"]:
        assert rule is Rule.NUL_CHARACTER
    elif rule is None:
        assert (row[1], row[3]) == (fields["customer_id"], fields["quantity"])
    else:  # a lone surrogate is no character
        assert rule in {Rule.NOT_JSON, Rule.INVALID_UTF8}


MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(["id", "note", "other"]),
        st.sampled_from(["", " ", "\n", "\t"]),
        st.sampled_from(['"a"', '"\\":"', '"x : y"', "null", "1"]),
    ),
    max_size=5,
)


@given(st.lists(MEMBERS, min_size=1, max_size=4))
def test_a_doubled_field_is_found_however_it_is_written(documents):
    schema = ValueSchema(
        ValueFormat.JSON, (Column("id", ColumnType.STRING, required=True), Column("note", ColumnType.STRING))
    )
    values = [
        ("{" + ",".join(f'"{name}"{space}:{value}' for name, space, value in members) + "}").encode()
        for members in documents
    ]
    found = Decoder(schema, key_required=False).decode(values, [None] * len(values), [0] * len(values))
    for members, rule in zip(documents, found.rules, strict=True):
        names = [name for name, _, _ in members]
        if rule is None:
            assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("text", "fits"), [("3.4028235e38", True), ("-3.4028235677973362e38", True), ("3.40282357e38", False)]
)
def test_a_float_fits_that_is_rounded_to_the_largest_one_as_its_shortest_text_is(text, fits):
    schema = ValueSchema(ValueFormat.JSON, (Column("ratio", ColumnType.FLOAT, required=True),))
    row, rule, _ = decode_one(b'{"ratio":%b}' % text.encode(), schema)
    assert rule == (None if fits else Rule.OUT_OF_RANGE)
    assert not fits or abs(row[0]) == 3.4028234663852886e38

"""A DECIMAL that comes as text: ASCII digits, one sign, one point, an exponent, and no more."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.domain.declaration.pipeline import Column, ColumnType, ValueFormat, ValueSchema
from millrace.domain.quarantine.rules import Rule
from millrace.runtime.formats.json.decoder import Decoder

SCHEMA = ValueSchema(
    ValueFormat.JSON,
    (
        Column("note", ColumnType.STRING),
        Column("amount", ColumnType.DECIMAL, required=True, precision=12, scale=2),
        Column("tax", ColumnType.DECIMAL, precision=12, scale=2),
    ),
)
DECODER = Decoder(SCHEMA, key_required=False)

ACCEPTED = ["1", "1.5", "+1", "-1", "00012", "-00.50", "1.", ".5", "+.5", "1e2", "1E+2", "150E-2", "-0", "12.500000"]
REFUSED = [
    *(
        "1_000",
        "_1",
        "1_",
        "1__0",
        " 1 ",
        "1 ",
        "\t1",
        "1\n",
        "\u00a01",
        "\u20031",
        "\u0661",
        "\uff11",
        "1\u0660",
        "1\uff0e5",
    ),
    *("", ".", "+", "+.", "e5", "1e", "1e+", "--1", "+-1", "1.2.3", "1,5", "0x1", "1 000", "1e5.0", "\u22121"),
    *("NaN", "nan", "sNaN", "-NaN", "NaN123", "Infinity", "-Infinity", "inf", "+inf", "true", "null"),
]
# Every way in which JSON may spell the field, the text being the same.
SPELLINGS = [
    '{"note":"x","amount":TEXT,"tax":1}',
    '{"note": "x", "amount": TEXT, "tax": 1}',
    '{"note":"x","amount" : TEXT,"tax":"1"}',
    '{"note":"x","amount":\t\r\n TEXT,"tax":1}',
    '{"note":"x","\\u0061mount":TEXT,"tax":1}',
    '{"note":null,"amount":TEXT,"tax":"2.50"}',
    '{"amount":TEXT}',
    '{"amount":TEXT,"other":{"amount":"1_0"},"tax":1}',
    '{"note":"\\"amount\\":\\"1_0\\"","amount":TEXT,"tax":1}',
]


def decode(*values: str) -> tuple[list[Rule | None], list[Decimal | None], list[str | None]]:
    found = DECODER.decode([value.encode() for value in values], [None] * len(values), [0] * len(values))
    return found.rules, found.columns[1].to_pylist(), found.errors


def escaped(text: str) -> str:
    return '"' + "".join(f"\\u{ord(sign):04x}" for sign in text) + '"'


def spelled(spelling: str, text: str) -> list[str]:
    texts = {json.dumps(text), json.dumps(text, ensure_ascii=False), escaped(text)}
    return [spelling.replace("TEXT", each) for each in texts]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("text", ACCEPTED)
def test_ascii_digits_with_a_sign_a_point_and_an_exponent_are_a_number(text: str, spelling: str) -> None:
    for value in spelled(spelling, text):
        assert decode(value)[:2] == ([None], [Decimal(text)])


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("text", REFUSED)
def test_other_texts_are_no_number(text: str, spelling: str) -> None:
    for value in spelled(spelling, text):
        rules, amounts, errors = decode(value)
        assert (rules, amounts) == ([Rule.WRONG_TYPE], [None])
        assert "the field `amount` is no decimal number" in (errors[0] or "")


@pytest.mark.parametrize("text", ["1_000", " 1 ", "\uff11", "NaN"])
def test_such_a_text_leaves_its_neighbours_alone(text: str) -> None:
    number, fine, odd = (SPELLINGS[0].replace("TEXT", each) for each in ("2.5", '"3.50"', json.dumps(text)))
    rules, amounts, _ = decode(number, fine, odd, fine)
    assert rules == [None, None, Rule.WRONG_TYPE, None]
    assert amounts == [Decimal("2.5"), Decimal("3.5"), None, Decimal("3.5")]


def test_a_null_and_a_text_in_one_block_are_looked_at() -> None:
    """Null has no quotes, a text has two: together they have as many as two numbers beside texts."""
    rules, _, _ = decode('{"note":null,"amount":1,"tax":1}', '{"note":"x","amount":"1_0","tax":1}')
    assert rules == [None, Rule.WRONG_TYPE]


@pytest.mark.parametrize("text", ["1e99999999999999999999", "-1e99999999999999999999", "1e-99999999999999999999"])
def test_an_exponent_beyond_all_bounds_is_out_of_range_as_a_number_and_as_text(text: str) -> None:
    for given_as in (text, f'"{text}"'):
        assert decode(SPELLINGS[0].replace("TEXT", given_as))[0] == [Rule.OUT_OF_RANGE]


def is_number(text: str) -> bool:
    """Whether it is one, without a regular expression."""
    mantissa, separator, exponent = text.replace("E", "e").partition("e")
    whole, _, fraction = mantissa[mantissa[:1] in ("+", "-") :].partition(".")
    power = exponent[exponent[:1] in ("+", "-") :]
    parts = [whole + fraction, power] if separator else [whole + fraction]
    return all(part.isascii() and part.isdigit() for part in parts)


@given(st.text("0123459.eE+-_ \u0661\uff11naif", max_size=8), st.sampled_from(SPELLINGS))
@example("+", SPELLINGS[0])
def test_a_text_is_a_number_or_of_the_wrong_type(text: str, spelling: str) -> None:
    for value in spelled(spelling, text):
        [rule], [amount], _ = decode(value)
        assert (rule is not Rule.WRONG_TYPE) is is_number(text)
        if rule is None:
            assert amount == Decimal(text)

"""DECIMAL holds a number exactly or refuses it, whatever its digits and whatever stands beside it in the block.

The oracle counts digits: it uses Python's `decimal` to read the text and to compare, and never to round.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.domain.declaration.pipeline import Column, ColumnType, ValueFormat, ValueSchema
from millrace.domain.quarantine.rules import Rule
from millrace.runtime.formats.decoded import Decoded
from millrace.runtime.formats.json.decoder import Decoder
from support.checks.tiers import examples

# `new BigDecimal(4000.1)` of Java, and lengths at which Arrow makes 0 or garbage of a number and raises nothing.
OF_JAVA = "4000.09999999999990905052982270717620849609375"
WRONG_IN_ARROW = [OF_JAVA, *(f"1.5{'1' * (digits - 1)}" for digits in (39, 41, 45, 59, 69, 75, 83, 93, 103))]


@lru_cache(maxsize=4)
def decoder_of(precision: int, scale: int, required: bool) -> Decoder:
    column = Column("a", ColumnType.DECIMAL, required, precision, scale)
    return Decoder(ValueSchema(ValueFormat.JSON, (column,)), key_required=False)


def decode(texts: Sequence[str], precision: int, scale: int, *, required: bool = True) -> Decoded:
    decoder = decoder_of(precision, scale, required)
    values = [b'{"a":%s}' % text.encode() for text in texts]
    return decoder.decode(values, [None] * len(values), [0] * len(values))


def stored(found: Decoded) -> list[Decimal | Rule]:
    return [rule or value for rule, value in zip(found.rules, found.columns[0].to_pylist(), strict=True)]


def expected(text: str, precision: int, scale: int) -> Decimal | Rule:
    """The number itself, or the rule that it breaks: by its first and its last digit that is not 0."""
    number = Decimal(text)
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    shown = "".join(map(str, digits)).lstrip("0")
    last = exponent + len(shown) - len(shown.rstrip("0"))
    fits = not shown or (last >= -scale and exponent + len(shown) <= precision - scale)
    return number if fits else Rule.OUT_OF_RANGE


@pytest.mark.parametrize("text", WRONG_IN_ARROW)
def test_a_number_with_more_places_than_the_column_is_refused(text: str) -> None:
    for spelled in (text, f"-{text}", f'"{text}"'):
        assert stored(decode([spelled], 12, 2)) == [Rule.OUT_OF_RANGE]
        assert stored(decode(["1.25", spelled, "2.5"], 12, 2)) == [Decimal("1.25"), Rule.OUT_OF_RANGE, Decimal("2.5")]


@pytest.mark.parametrize("zeros", [1, 38, 39, 59, 103, 5000])
def test_zeros_at_the_end_are_no_digits(zeros: int) -> None:
    assert stored(decode([f"1.50{'0' * zeros}"], 12, 2)) == [Decimal("1.5")]


@pytest.mark.parametrize("text", ["0", "-0", "0e50", "0E-50", "0e999999", "-0e-999999", "0e99999999", "0." + "0" * 200])
def test_zero_is_zero_however_it_is_written(text: str) -> None:
    found = decode([text, f'"{text}"'], 2, 2)
    assert [str(value) for value in found.columns[0].to_pylist()] == ["0.00", "0.00"]


def test_every_amount_that_java_prints_of_a_double_is_exact_or_refused() -> None:
    """As many of them as have no short form; a few are sums of powers of two, and fit."""
    texts = [format(Decimal(cents / 100), "f") for cents in range(400_000, 402_000)]
    found = stored(decode(texts, 12, 2))
    assert found == [expected(text, 12, 2) for text in texts]
    assert {Rule.OUT_OF_RANGE, Decimal(4000), Decimal("4000.25")} <= set(found)


DIGITS = st.one_of(
    st.integers(0, 10**6),
    st.integers(0, 10**40),
    st.integers(0, 10**130),
    st.integers(0, 40).map(lambda power: 10**power),
    st.integers(1, 40).map(lambda power: 10**power - 1),
).map(str)
EXPONENTS = st.one_of(
    st.none(), st.integers(-45, 45), st.sampled_from([-130, 130, -400, 400, -5000, 5000, -(10**6), 10**6, 10**9])
)


@st.composite
def numbers(draw: st.DrawFn) -> str:
    """A number as JSON spells it: sign, digits with a point among them or none, zeros at the end, an exponent."""
    digits, zeros, exponent = draw(DIGITS), draw(st.integers(0, 45)), draw(EXPONENTS)
    point = draw(st.integers(0, len(digits)))
    text = digits
    if point:
        text = f"{digits[:-point] or '0'}.{digits[-point:]}{'0' * zeros}"
    shown = "" if exponent is None else draw(st.sampled_from(["e", "E", "e+"] if exponent >= 0 else ["e", "E"]))
    return f"{draw(st.sampled_from(['', '-']))}{text}{shown}{'' if exponent is None else exponent}"


@st.composite
def blocks(draw: st.DrawFn, least: int = 1) -> tuple[list[str], int, int, bool]:
    precision = draw(st.integers(1, 38))
    texts = draw(st.lists(numbers(), min_size=least, max_size=40))
    return texts, precision, draw(st.integers(0, precision)), draw(st.booleans())


def each_is_kept_or_refused(block: tuple[list[str], int, int, bool]) -> None:
    texts, precision, scale, required = block
    wanted = [expected(text, precision, scale) for text in texts]
    for spelled in (texts, [f'"{text}"' for text in texts]):
        alone = [stored(decode([text], precision, scale, required=required))[0] for text in spelled]
        assert alone == wanted
        assert stored(decode(spelled, precision, scale, required=required)) == wanted


@given(blocks())
def test_each_number_is_kept_or_refused(block: tuple[list[str], int, int, bool]) -> None:
    each_is_kept_or_refused(block)


@pytest.mark.full
@settings(max_examples=examples(5_250), deadline=None, suppress_health_check=list(HealthCheck))
@given(blocks(least=40))
def test_each_of_200_000_numbers_is_kept_or_refused(block: tuple[list[str], int, int, bool]) -> None:
    each_is_kept_or_refused(block)


@given(blocks())
def test_good_numbers_stay_in_one_block(block: tuple[list[str], int, int, bool]) -> None:
    """Of numbers that fit only: no other takes the block apart."""
    texts, precision, scale, required = block
    fitting = [text for text in texts if isinstance(expected(text, precision, scale), Decimal)]
    assert stored(decode(fitting, precision, scale, required=required)) == list(map(Decimal, fitting))

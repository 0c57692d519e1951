"""Durations, sizes and schemas: what they mean, exactly, and that spelling them again gives the same."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from millrace.declarations.ddl import parse_schema
from millrace.declarations.fields import SeveralWrong, Wrong, parse_duration, parse_size
from millrace.declarations.rates import parse_growth, parse_rate
from millrace.declarations.spelling import spell_duration, spell_growth, spell_rate, spell_size
from millrace.domain.declaration.pipeline import Column, ColumnType, ValueFormat, ValueSchema


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("250ms", 250),
        ("30s", 30_000),
        ("5m", 300_000),
        ("12h", 43_200_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("10y", 315_360_000_000),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("100B", 100),
        ("900KB", 900_000),
        ("500MB", 500_000_000),
        ("2GiB", 2 * 1024**3),
        ("1TiB", 1024**4),
        ("1KiB", 1024),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@given(some.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=365_000)))
def test_a_duration_spelled_is_read_back(duration: timedelta) -> None:
    whole = duration // timedelta(milliseconds=1) * timedelta(milliseconds=1)

    assert parse_duration(spell_duration(whole)) == whole


def test_a_duration_is_spelled_in_its_largest_unit() -> None:
    assert [spell_duration(timedelta(days=days)) for days in (7, 365, 366, 3650)] == ["7d", "1y", "366d", "10y"]


@given(some.integers(min_value=1, max_value=2**63 - 1))
def test_a_size_spelled_is_read_back(size_bytes: int) -> None:
    assert parse_size(spell_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("text", "per_second"),
    [("500/s", 500), ("30/min", 0.5), ("1800/h", 0.5), ("8640/day", 0.1), ("0.5/s", 0.5), ("500 / s", 500)],
)
def test_rates(text: str, per_second: float) -> None:
    assert parse_rate(text) == pytest.approx(per_second, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "days", "factor"),
    [
        ("5%/month", 30, 1.05),
        ("1%/day", 1, 1.01),
        ("+7%/week", 7, 1.07),
        ("-20%/year", 365, 0.8),
        ("0%/month", 30, 1),
        ("-99.9%/month", 30, 0.001),
    ],
)
def test_growth_is_compounded_over_its_span(text: str, days: int, factor: float) -> None:
    assert (1 + parse_growth(text)) ** days == pytest.approx(factor, rel=1e-9)


@given(some.decimals(min_value=0, max_value=10**9, places=2), some.sampled_from(["s", "min", "h", "day"]))
def test_a_rate_spelled_is_read_back(number: object, unit: str) -> None:
    if number == 0:
        return
    rate = parse_rate(f"{number}/{unit}")

    assert parse_rate(spell_rate(rate)) == pytest.approx(rate, rel=1e-9)


@given(some.integers(-9_999, 10_000), some.sampled_from(["day", "week", "month", "year"]))
def test_a_growth_spelled_is_read_back(hundredths: int, unit: str) -> None:
    growth = parse_growth(f"{hundredths / 100:.2f}%/{unit}")

    assert parse_growth(spell_growth(growth)) == pytest.approx(growth, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("text", ["500/s", "30/min", "7/h", "50001/day"])
def test_a_rate_is_spelled_as_it_was_written(text: str) -> None:
    assert spell_rate(parse_rate(text)) == text


@pytest.mark.parametrize("text", ["5%/month", "1%/day", "7%/week", "-20%/year", "2.5%/month"])
def test_a_growth_is_spelled_as_it_was_written(text: str) -> None:
    assert spell_growth(parse_growth(text)) == text


@given(some.one_of(some.text(max_size=30), some.integers(), some.floats(), some.booleans(), some.none()))
def test_any_other_value_is_wrong_with_a_next_step(value: object) -> None:
    for parse in (parse_duration, parse_size, parse_schema, parse_rate, parse_growth):
        problems: tuple[Wrong, ...] = ()
        try:
            parse(value)
        except Wrong as wrong:
            problems = (wrong,)
        except SeveralWrong as several:
            problems = several.problems
        assert all(each.what and each.next_step for each in problems)


_names = some.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,10}", fullmatch=True)


@some.composite
def _columns(draw: some.DrawFn) -> Column:
    kind = draw(some.sampled_from([kind for kind in ColumnType if kind is not ColumnType.BINARY]))
    if kind is not ColumnType.DECIMAL:
        return Column(draw(_names), kind, draw(some.booleans()))
    precision = draw(some.integers(1, 38))
    return Column(draw(_names), kind, draw(some.booleans()), precision, draw(some.integers(0, precision)))


@given(some.lists(_columns(), min_size=1, max_size=8, unique_by=lambda column: column.name.casefold()))
def test_a_schema_written_as_ddl_is_read_back(columns: list[Column]) -> None:
    schema = ValueSchema(ValueFormat.JSON, tuple(columns))

    assert parse_schema(schema.ddl) == schema.columns


def test_ddl_may_be_in_any_case_with_colons_and_line_breaks() -> None:
    assert parse_schema("id : string not  null ,\n amount\tdecimal( 12 , 2 )") == (
        Column("id", ColumnType.STRING, True),
        Column("amount", ColumnType.DECIMAL, False, 12, 2),
    )

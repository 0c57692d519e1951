"""Rules as Great Expectations' expectations, and the rows that each is about as a query."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from great_expectations import expectations as gxe  # noqa: TID253  loaded by checks alone
from psycopg import sql

from millrace.adapters.quality import expectations as own
from millrace.domain.quality.columns import canonical
from millrace.domain.quality.rules import (
    Compare,
    Comparison,
    Exists,
    Fresh,
    HasType,
    InSet,
    Matches,
    NotNull,
    Query,
    Range,
    RowCondition,
    RowCount,
    Rule,
    Unique,
    Value,
    Volume,
)
from millrace.domain.topics.offsets import OffsetRange

SOURCE = ("_topic_id", "_partition", "_offset")
"""The columns that say which record a row came from."""
NEVER_NULL = "_offset"
"""A column of every sink that has a value in each row: what has no column of its own is counted by it."""
_SPREAD = ("numeric", "double precision", "real")
_WHOLE = ("smallint", "integer", "bigint")
RISKY = (RowCondition, Matches, Exists, Query)
"""Kinds that may fail or run for ever by what stands in a rule or in rows: each is tried by itself."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What rules need to know beside themselves.

    Attributes:
        table: `schema.table`.
        columns: its columns, with their types as PostgreSQL spells them.
        ranges: the offsets whose rows are looked at.
        gained: those that came since the last look.
        now: the present.
        known_age: by rule of freshness: how old, in seconds, the newest is that was seen before, or that Kafka knows.
        usual: by rule of volume: how many rows are usual, least and most; none where nobody knows.
    """

    table: str
    columns: Mapping[str, str]
    ranges: Sequence[OffsetRange]
    gained: Sequence[OffsetRange]
    now: datetime
    known_age: Mapping[str, float]
    usual: Mapping[str, tuple[int, int]]


def condition_of(ranges: Sequence[OffsetRange], where: str | None = None) -> str:
    """The SQL condition of the rows of some ranges, by their key.

    Args:
        ranges: none: no rows.
        where: an SQL condition of a rule.
    """
    parts = [
        sql.SQL("(_topic_id = {} AND _partition = {} AND _offset >= {} AND _offset < {})").format(
            one.partition.topic_id, one.partition.partition, one.first, one.next
        )
        for one in ranges
    ]
    condition = (sql.SQL(" OR ").join(parts) if parts else sql.SQL("false")).as_string(None)
    return f"({condition})" if where is None else f"({condition}) AND (({where}\n) IS TRUE)"


def condition_for(rule: Rule, around: Surroundings) -> str:
    """The SQL condition of the rows that a rule is about."""
    return condition_of(around.gained if isinstance(rule.check, Volume) else around.ranges, rule.where)


def rows_of(table: str, condition: str) -> str:
    """The query of the rows of a table, `schema.table`, that meet a condition."""
    return f"SELECT * FROM {quoted(table)} WHERE {condition}"


def rows_for(rule: Rule, around: Surroundings) -> str:
    """The query of the rows that a rule is about."""
    return rows_of(around.table, condition_for(rule, around))


def query_of(rule: Rule, around: Surroundings, wanted: str) -> str:
    """A query over the rows that break a rule of the kinds that are counted by a query.

    Args:
        rule: of the kind `sql`, `exists` or `unique`.
        around: what it is compiled with.
        wanted: what is asked of the rows that it finds, as `count(*)`.
    """
    rows = rows_for(rule, around)
    match rule.check:
        case Query(text):
            return f"WITH _rows AS ({rows}) SELECT {wanted} FROM ({text.format(rows='_rows')}\n) AS _found"
        case Exists(column, table, other):
            name, known = sql.Identifier(column).as_string(None), sql.Identifier(other).as_string(None)
            there = f"SELECT FROM {quoted(table)} AS _other WHERE _other.{known} = _found.{name}"
            return f"SELECT {wanted} FROM ({rows}) AS _found WHERE {name} IS NOT NULL AND NOT EXISTS ({there})"
        case Unique(columns):
            names = sql.SQL(", ").join(map(sql.Identifier, columns)).as_string(None)
            given = sql.SQL(" AND ").join(sql.SQL("{} IS NOT NULL").format(sql.Identifier(one)) for one in columns)
            counted = f"SELECT {', '.join(SOURCE)}, count(*) OVER (PARTITION BY {names}) AS _held"
            among = f"{counted} FROM ({rows}) AS _rows WHERE {given.as_string(None)}"
            return f"SELECT {wanted} FROM ({among}) AS _found WHERE _held > 1"
    raise TypeError(f"{rule.kind} is not counted by a query")


def expectation_of(rule: Rule, around: Surroundings) -> Any:
    """A rule as an expectation, that bears its name."""
    made = _made(rule, around)
    made.meta = {"rule": rule.name}
    made.severity = "critical" if rule.severity == "fail" else "warning"
    text = f"{rule.name} ({rule.kind}, {rule.severity})" + (", of some rows only" if rule.where else "")
    made.description = text.replace("$", "$$")
    return made


def _made(rule: Rule, around: Surroundings) -> Any:
    check = rule.check
    match check:
        case NotNull(column):
            return gxe.ExpectColumnValuesToNotBeNull(column=column)
        case InSet(column, values):
            known = [_exact(bound(value, around.columns[column])) for value in values]
            return own.ExpectValuesInSet(column=column, value_set=known)
        case Range():
            return _range(check, around.columns[check.column])
        case Matches(column, pattern):
            return gxe.ExpectColumnValuesToMatchRegex(column=column, regex=pattern)
        case Exists():
            return own.ExpectValuesToExistElsewhere(query=query_of(rule, around, "count(*)"))
        case RowCondition(condition):
            return own.ExpectRowsToMeetCondition(column=NEVER_NULL, condition=condition)
        case Compare():
            return _compare(check)
        case Unique((column,)):
            return gxe.ExpectColumnValuesToBeUnique(column=column)
        case Unique():
            return own.ExpectColumnsToBeUniqueTogether(query=query_of(rule, around, "count(*)"))
    return _of_the_whole(rule, around)


def _of_the_whole(rule: Rule, around: Surroundings) -> Any:
    check = rule.check
    match check:
        case HasType(column, type_):
            return own.ExpectColumnToHaveType(table=quoted(around.table), column=column, type_=canonical(type_))
        case RowCount(least, most):
            return gxe.ExpectTableRowCountToBeBetween(min_value=least, max_value=most)
        case Volume():
            least, most = around.usual[rule.name]
            return gxe.ExpectTableRowCountToBeBetween(min_value=least, max_value=most)
        case Fresh(at_most, None):
            age = around.known_age.get(rule.name)
            return own.ExpectNewestRecordToBeFresh(at_most=at_most.total_seconds(), age=age)
        case Fresh(at_most, str(column)):
            return own.ExpectNewestEventToBeFresh(
                column=column,
                now=around.now.isoformat(),
                at_most=at_most.total_seconds(),
                known_age=around.known_age.get(rule.name),
            )
        case Query():
            return own.ExpectQueryToFindNothing(query=query_of(rule, around, "count(*)"))
    raise TypeError(f"no expectation for {rule.kind}")


def _range(check: Range, type_: str) -> Any:
    """A range that has no upper bound gets an infinite one where NaN is a value: PostgreSQL sorts NaN behind it."""
    least = None if check.min is None else _shortest(bound(check.min, type_))
    most = None if check.max is None else _shortest(bound(check.max, type_))
    if most is None and type_.startswith(_SPREAD):
        most = own.Exact("Infinity") if type_.startswith("numeric") else float("inf")
    return own.ExpectValuesInRange(column=check.column, min_value=least, max_value=most)


def _shortest(value: Any) -> Any:
    """Return a whole Decimal of 64 bits as an int, which PostgreSQL compares fastest; else as `_exact` does."""
    whole = isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value()
    return int(value) if whole and -(2**63) <= value < 2**63 else _exact(value)


def _exact(value: Any) -> Any:
    """Return a Decimal as the library takes it, any other value as it is."""
    return own.Exact(value) if isinstance(value, Decimal) else value


def _compare(check: Compare) -> Any:
    """The library knows equal, greater, and both; less is greater the other way round."""
    names = {"column_A": check.column, "column_B": check.other}
    if check.comparison in (Comparison.LESS, Comparison.AT_MOST):
        names = {"column_A": check.other, "column_B": check.column}
    ignore = {"ignore_row_if": "either_value_is_missing"}
    if check.comparison is Comparison.EQUAL:
        return gxe.ExpectColumnPairValuesToBeEqual(**names, **ignore)
    or_equal = check.comparison in (Comparison.AT_MOST, Comparison.AT_LEAST)
    return gxe.ExpectColumnPairValuesAToBeGreaterThanB(**names, or_equal=or_equal, **ignore)


def bound(value: Value, type_: str) -> Any:
    """A value of a rule file as the type of the column that it is compared with, so that nothing is rounded.

    Raises:
        ValueError: it is none of that type.
    """
    if isinstance(value, bool):
        return value
    if type_.startswith("timestamp") and isinstance(value, str):
        at = datetime.fromisoformat(value)
        if type_ == "timestamp with time zone":
            return at if at.tzinfo else at.replace(tzinfo=UTC)
        return at.astimezone(UTC).replace(tzinfo=None) if at.tzinfo else at
    if type_ == "date" and isinstance(value, str):
        return date.fromisoformat(value)
    if type_.startswith("time") and isinstance(value, str):
        return time.fromisoformat(value)
    if isinstance(value, str):
        return value
    if type_.startswith("numeric") or type_ in _WHOLE:  # of several whole numbers the first would choose the type
        return Decimal(str(value))
    if type_ == "real":  # a column of these holds the nearest that has 32 bits
        return float(struct.unpack("f", struct.pack("f", value))[0])
    if type_ == "double precision":
        return float(value)
    return value


def quoted(table: str) -> str:
    """`schema.table` with each name quoted."""
    schema, _, name = table.partition(".")
    return sql.Identifier(schema, name).as_string(None)

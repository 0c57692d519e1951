"""Tables of values that are hard to compare, and what rules have to count in them: in Python, and in SQL."""

from __future__ import annotations

import math
import random
import re
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg

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
    Severity,
    Unique,
)
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from support.sinks.table_columns import OWN_WITH_KEY

Row = Mapping[str, Any]
TOPIC, TOPIC_ID = "oracle.rows", "oracleoracleoracle0001"
NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
TYPES = {
    "name": "text",
    "n": "integer",
    "m": "integer",
    "b": "bigint",
    "num": "numeric(12,2)",
    "loose": "numeric",
    "r": "real",
    "d": "double precision",
    "e": "double precision",
    "day": "date",
    "at": "timestamp with time zone",
    "flag": "boolean",
    "Mixed": "text",
}
SMALL = float(struct.unpack("f", struct.pack("f", 0.1))[0])
POOLS: dict[str, list[Any]] = {
    "name": [None, "", "a", "ab", "A", "b%c", "d:e", "ü", "a\nb", "NaN", "'", "\\"],
    "n": [None, 0, 1, 2, 5, -1, 2**31 - 1, -(2**31)],
    "m": [None, 0, 1, 2, 5, -1],
    "b": [None, 0, 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)],
    "num": [
        None,
        Decimal("NaN"),
        Decimal("0.00"),
        Decimal("0.10"),
        Decimal("1.00"),
        Decimal("-1.50"),
        Decimal("99.99"),
    ],
    "loose": [
        None,
        Decimal("NaN"),
        Decimal("Infinity"),
        Decimal("-Infinity"),
        Decimal("0.1"),
        Decimal("1e400"),
        Decimal(1),
    ],
    "r": [None, math.nan, math.inf, -math.inf, 0.0, SMALL, 1.0, -2.5],
    "d": [None, math.nan, math.inf, -math.inf, 0.0, -0.0, 0.1, 1.0, -2.5, 1e308],
    "e": [None, math.nan, math.inf, 0.0, 0.1, 1.0],
    "day": [None, date(1970, 1, 1), date(2026, 5, 4), date(2026, 5, 5), date(9999, 12, 31)],
    "at": [None, NOW, NOW - timedelta(hours=1), NOW - timedelta(microseconds=1), NOW + timedelta(days=400)],
    "flag": [None, True, False],
    "Mixed": [None, "x", "y"],
}
BOUNDS: dict[str, list[Any]] = {
    "name": ["", "a", "b"],
    "n": [0, 1, 5, 2**31 - 1],
    "b": [1, 2**53, 2**53 + 1],
    "num": [0, 0.1, 1, 99.99],
    "loose": [0.1, 1],
    "r": [0, 0.1, 1],
    "d": [0, 0.1, 1],
    "day": ["1970-01-01", "2026-05-04"],
    "at": ["2026-05-04T12:00:00+00:00", "2026-05-04T13:00:00+02:00", "2026-05-04"],
}
PATTERNS = ["^a", "b", "^$", "[a-z]{2}", "^[^%]*$", "ü|A", r"\\", "d:e", "^a.b$"]
OTHERS: dict[str, list[Any]] = {
    "name": [None, "a", "b%c", "A"],
    "n": [None, 1, 2],
    "num": [Decimal("1.00"), Decimal("NaN")],
}


def _all(*values: object) -> bool:
    return all(value is not None for value in values)


def order(value: Any) -> Any:
    """A value as PostgreSQL sorts it: NaN equals itself and is above all."""
    if isinstance(value, float | Decimal):
        return (1, 0) if value != value else (0, value)
    return (0, value) if isinstance(value, int) and not isinstance(value, bool) else value


Truth = Callable[[Row], bool | None]
CONDITIONS: list[tuple[str, Truth]] = [
    ("n >= 0", lambda row: None if row["n"] is None else row["n"] >= 0),
    ("n::text <> '5' or m > 1", lambda row: _or(_not_five(row), None if row["m"] is None else row["m"] > 1)),
    ("name like '%%' or name = ':x'", lambda row: None if row["name"] is None else True),
    ("\"Mixed\" = 'x'", lambda row: None if row["Mixed"] is None else row["Mixed"] == "x"),
    ("d = d", lambda row: None if row["d"] is None else True),
    ("flag", lambda row: row["flag"]),
    ("name !~ '^a' and position(':' in name) = 0", lambda row: _plain(row["name"])),
]


def _plain(name: str | None) -> bool | None:
    return None if name is None else not name.startswith("a") and ":" not in name


def _not_five(row: Row) -> bool | None:
    return None if row["n"] is None else row["n"] != 5


def _or(one: bool | None, other: bool | None) -> bool | None:
    if one or other:
        return True
    return None if one is None or other is None else False


@dataclass(frozen=True)
class Expected:
    """What a rule has to find; `broken` None: it is about the whole, and `passed` says what comes of it."""

    broken: int | None
    passed: bool
    rows: int | None = None
    sources: Sequence[tuple[int, int]] = ()


def random_rows(chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Rows of three partitions, with more rows of one record here and there."""
    rows: list[dict[str, Any]] = []
    offsets = [0, 0, 0]
    while len(rows) < count:
        partition = chance.randrange(3)
        offsets[partition] += chance.choice((1, 1, 1, 3))
        for ordinal in range(chance.choice((1, 1, 1, 2))):
            values = {name: chance.choice(POOLS[name]) for name in TYPES}
            rows.append({**values, "_partition": partition, "_offset": offsets[partition], "_ordinal": ordinal})
    return rows


def random_ranges(chance: random.Random) -> tuple[OffsetRange, ...]:
    """Ranges of some of the partitions; empty ones and ones without rows too."""
    found = []
    for partition in range(3):
        if chance.random() < 0.8:
            first = chance.choice((0, 0, 5, 40))
            found.append(
                OffsetRange(TopicPartition(TOPIC, TOPIC_ID, partition), first, first + chance.choice((0, 7, 500)))
            )
    return tuple(found)


_KINDS = ["not_null", "type", "in_set", "range", "range", "regex", "unique", "condition", "row_count", "fresh"]
_KINDS += ["compare", "compare", "exists", "sql"]


def random_rule(chance: random.Random, number: int) -> tuple[Rule, Truth | None]:
    """A rule, and what its `where` is in Python."""
    kind = chance.choice(_KINDS)
    where = chance.choice(CONDITIONS) if chance.random() < 0.25 and kind not in ("type", "sql") else None
    severity = chance.choice(list(Severity))
    rule = Rule(f"r{number}_{kind}", _random_check(chance, kind), severity, None if where is None else where[0])
    return rule, None if where is None else where[1]


def _random_check(chance: random.Random, kind: str) -> Any:
    return _RANDOM[kind](chance)


def _random_type(chance: random.Random) -> HasType:
    column = chance.choice(list(TYPES))
    return HasType(column, chance.choice((TYPES[column], "text", "numeric(12,3)")))


def _random_set(chance: random.Random) -> InSet:
    if chance.random() < 0.2:
        return InSet("flag", (True,))
    column = chance.choice(list(BOUNDS))
    return InSet(column, tuple(chance.sample(BOUNDS[column], chance.randint(1, len(BOUNDS[column])))))


def _random_range(chance: random.Random) -> Range:
    column = chance.choice([name for name in BOUNDS if name != "name"])  # texts have no range
    pair = chance.choice(BOUNDS[column]), chance.choice(BOUNDS[column])
    low, high = sorted(pair, key=lambda value: order(bound(value, column)))
    return Range(column, *chance.choice(((low, high), (low, None), (None, high))))


def _random_compare(chance: random.Random) -> Compare:
    pair = chance.choice((("n", "m"), ("d", "e"), ("num", "loose"), ("d", "r"), ("day", "at"), ("name", "Mixed")))
    return Compare(pair[0], chance.choice(list(Comparison)), pair[1])


def _random_exists(chance: random.Random) -> Exists:
    other = chance.choice(list(OTHERS))
    return Exists(other, "{schema}.other", other)


def _random_query(chance: random.Random) -> Query:
    text, _ = chance.choice(CONDITIONS)
    return Query(f"select _topic_id, _partition, _offset from {{rows}} where ({text}) is not true")


_RANDOM: dict[str, Callable[[random.Random], Any]] = {
    "not_null": lambda chance: NotNull(chance.choice(list(TYPES))),
    "type": _random_type,
    "in_set": _random_set,
    "range": _random_range,
    "regex": lambda chance: Matches(chance.choice(("name", "Mixed")), chance.choice(PATTERNS)),
    "unique": lambda chance: Unique(tuple(chance.sample(list(TYPES), chance.choice((1, 1, 2, 3))))),
    "condition": lambda chance: RowCondition(chance.choice(CONDITIONS)[0]),
    "row_count": lambda chance: RowCount(chance.choice((None, 0, 1, 30)), chance.choice((30, 1000))),
    "fresh": lambda chance: Fresh(timedelta(minutes=chance.choice((1, 60, 61))), "at"),
    "compare": _random_compare,
    "exists": _random_exists,
    "sql": _random_query,
}


def bound(value: Any, column: str) -> Any:
    """A value of a rule file as the column has it."""
    match TYPES[column]:
        case "date":
            return date.fromisoformat(value)
        case "timestamp with time zone":
            at = datetime.fromisoformat(value)
            return at if at.tzinfo else at.replace(tzinfo=UTC)
        case "real":
            return float(struct.unpack("f", struct.pack("f", value))[0])
        case "numeric" | "numeric(12,2)":
            return Decimal(str(value))
    return value


def expected(rule: Rule, where: Truth | None, rows: Sequence[Row], ranges: Sequence[OffsetRange]) -> Expected:
    """What has to come of a rule, in plain Python."""
    mine = [row for row in rows if _within(row, ranges) and (where is None or where(row) is True)]
    check = rule.check
    match check:
        case HasType(column, type_):
            return Expected(None, TYPES[column] == type_)
        case RowCount(least, most):
            return Expected(None, (least or 0) <= len(mine) <= (most if most is not None else len(mine)))
        case Fresh(at_most, column):
            times = [row["at"] for row in mine if row["at"] is not None and row["at"] <= NOW + timedelta(minutes=5)]
            return Expected(None, bool(times) and NOW - max(times) <= at_most)
        case Unique(columns):
            keys = [tuple(_key(row[name]) for name in columns) for row in mine]
            counts = Counter(key for key in keys if _all(*key))
            broken = [row for row, key in zip(mine, keys, strict=True) if counts[key] > 1]
        case _:
            broken = [row for row in mine if _is_broken(check, row)]
    sources = sorted({(row["_partition"], row["_offset"], row["_ordinal"]) for row in broken})
    named = [(partition, offset) for partition, offset, _ in sources]
    if isinstance(check, Query):
        named = sorted(set(named))
    return Expected(len(broken), not broken, len(mine), named)


def _within(row: Row, ranges: Sequence[OffsetRange]) -> bool:
    return any(
        one.partition.partition == row["_partition"] and one.first <= row["_offset"] < one.next for one in ranges
    )


def _key(value: Any) -> Any:
    if isinstance(value, float | Decimal):
        return ("nan",) if value != value else (value + 0,)
    return None if value is None else (value,)


def _is_broken(check: Any, row: Row) -> bool:
    match check:
        case RowCondition(text):
            return dict(CONDITIONS)[text](row) is False
        case Compare(column, comparison, other):
            return _compared(row[column], comparison, row[other])
        case Query(text):
            [truth] = [truth for sql, truth in CONDITIONS if f"({sql}) is not true" in text]
            return truth(row) is not True
        case NotNull(column):
            return row[column] is None
    value = row[check.column]
    return value is not None and _is_wrong(check, value)


def _is_wrong(check: Any, value: Any) -> bool:
    """Of a value that is not null."""
    match check:
        case InSet(column, values):
            return value != value or value not in [bound(each, column) for each in values]
        case Range(column, least, most):
            if value != value:
                return True
            below = least is not None and value < bound(least, column)
            return below or (most is not None and value > bound(most, column))
        case Matches(_, pattern):
            return not re.search(pattern.replace("$", r"\Z"), value, re.DOTALL)
        case Exists(column):
            return _key(value) not in {_key(known) for known in OTHERS[column] if known is not None}
    raise TypeError(check)


def _compared(one: Any, comparison: Comparison, other: Any) -> bool:
    if one is None or other is None:
        return False
    if isinstance(one, date) and not isinstance(one, datetime):
        one = datetime(one.year, one.month, one.day, tzinfo=UTC)
    left, right = order(one), order(other)
    match comparison:
        case Comparison.EQUAL:
            return left != right
        case Comparison.LESS:
            return left >= right
        case Comparison.AT_MOST:
            return left > right
        case Comparison.GREATER:
            return left <= right
    return left < right


def by_sql(connection: psycopg.Connection[Any], schema: str, rule: Rule, ranges: Sequence[OffsetRange]) -> int | None:
    """How many rows break a rule, in plain SQL; None for one that counts none."""
    parts = [f"(_partition = {r.partition.partition} and _offset between {r.first} and {r.next - 1})" for r in ranges]
    among = f"({' or '.join(parts) or 'false'}) and coalesce(({rule.where or 'true'}), false)"
    rows = f"(select * from {schema}.rows where {among})"
    text = _plain_sql(rule.check, schema, rows)
    if text is None:
        return None
    row = connection.execute(text).fetchone()
    return None if row is None else int(row[0])


def _plain_sql(check: Any, schema: str, rows: str) -> str | None:
    match check:
        case NotNull(column):
            return f'select count(*) from {rows} as t where "{column}" is null'
        case InSet(column, values):
            known = ", ".join(_literal(value, column) for value in values)
            return f'select count(*) from {rows} as t where "{column}" not in ({known})'
        case Range(column, least, most):
            nan = f" or \"{column}\" = 'NaN'" if TYPES[column].startswith(("numeric", "real", "double")) else ""
            low = "false" if least is None else f'"{column}" < {_literal(least, column)}'
            high = "false" if most is None else f'"{column}" > {_literal(most, column)}'
            return f"select count(*) from {rows} as t where ({low}) or ({high}){nan}"
        case Matches(column, pattern):
            quoted = pattern.replace("'", "''")
            return f"select count(*) from {rows} as t where \"{column}\" !~ '{quoted}'"
        case Unique(columns):
            names = ", ".join(f'"{name}"' for name in columns)
            full = " and ".join(f'"{name}" is not null' for name in columns)
            groups = f"select count(*) as c from {rows} as t where {full} group by {names} having count(*) > 1"
            return f"select coalesce(sum(c), 0) from ({groups}) as g"
        case RowCondition(text):
            return f"select count(*) from {rows} as t where not ({text})"
        case Compare(column, comparison, other):
            return f'select count(*) from {rows} as t where not ("{column}" {comparison.value} "{other}")'
        case Exists(column, table, other):
            found = f'exists (select from {table} as o where o."{other}" = t."{column}")'
            return f'select count(*) from {rows} as t where "{column}" is not null and not {found}'
        case Query(text):
            return f"select count(*) from ({text.replace('{rows}', rows + ' as t')}) as q"
    return None


def _literal(value: Any, column: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value).replace("'", "''")
    return f"'{text}'::{TYPES[column]}"


def fill(connection: psycopg.Connection[Any], schema: str, rows: Sequence[Row]) -> None:
    """Make the table `rows`, as a stream makes it, and the table `other`."""
    columns = ", ".join(f'"{name}" {type_}' for name, type_ in TYPES.items())
    connection.execute(f"CREATE SCHEMA {schema}")
    connection.execute(f"CREATE TABLE {schema}.rows ({columns}, {OWN_WITH_KEY})")
    others = ", ".join(f'"{name}" {TYPES[name]}' for name in OTHERS)
    connection.execute(f"CREATE TABLE {schema}.other ({others})")
    for at in range(max(map(len, OTHERS.values()))):
        values = [pool[at] if at < len(pool) else None for pool in OTHERS.values()]
        connection.execute(f"INSERT INTO {schema}.other VALUES (%s, %s, %s)", values)
    names = [*TYPES, "_partition", "_offset", "_ordinal"]
    quoted = ", ".join(f'"{name}"' for name in names)
    marks = ", ".join(["%s"] * len(names))
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {schema}.rows ({quoted}, _topic_id, _timeline) VALUES ({marks}, '{TOPIC_ID}', 1)",
            [[row[name] for name in names] for row in rows],
        )

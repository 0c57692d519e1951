"""Rules against the columns that a table has: what cannot be held against them, and why.

Types are spelled as PostgreSQL's `format_type` spells them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from enum import StrEnum

from millrace.domain.quality.rules import (
    Check,
    Compare,
    Exists,
    Fresh,
    HasType,
    InSet,
    Matches,
    Range,
    Rule,
    Value,
    columns_of,
)


class Family(StrEnum):
    """What values of a type are, as far as rules can compare them."""

    NUMBER = "a number"
    TEXT = "text"
    DATE = "a date"
    TIMESTAMP = "a timestamp"
    TRUTH = "true or false"
    OTHER = "of another kind"


_MOMENTS = frozenset({Family.DATE, Family.TIMESTAMP})
_FAMILIES: Mapping[str, Family] = {
    "smallint": Family.NUMBER,
    "integer": Family.NUMBER,
    "bigint": Family.NUMBER,
    "numeric": Family.NUMBER,
    "real": Family.NUMBER,
    "double precision": Family.NUMBER,
    "text": Family.TEXT,
    "character varying": Family.TEXT,
    "character": Family.TEXT,
    "date": Family.DATE,
    "timestamp with time zone": Family.TIMESTAMP,
    "timestamp without time zone": Family.TIMESTAMP,
    "boolean": Family.TRUTH,
}
_SPELLINGS: Mapping[str, str] = {
    "int2": "smallint",
    "int": "integer",
    "int4": "integer",
    "int8": "bigint",
    "decimal": "numeric",
    "float4": "real",
    "float8": "double precision",
    "float": "double precision",
    "varchar": "character varying",
    "char": "character",
    "bool": "boolean",
    "timestamptz": "timestamp with time zone",
    "timestamp": "timestamp without time zone",
}
_SIZE = re.compile(r"\s*\(([^)]*)\)")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[-+][0-9:]+)?)?")


def problems(
    rules: Sequence[Rule], columns: Mapping[str, str], others: Mapping[str, Mapping[str, str]] | None = None
) -> Mapping[str, str]:
    """What of these rules cannot be held against a table.

    Args:
        rules: the rules.
        columns: the table's columns: name to type.
        others: the columns of the tables that `exists` looks into, by `schema.table`, none where one is not there; a
            table that is no key is not judged.

    Returns:
        By the name of a rule, what is wrong with it. A rule of SQL is not judged: only the database can.
    """
    found = {rule.name: _problem(rule.check, columns, others or {}) for rule in rules}
    return {name: problem for name, problem in found.items() if problem}


def missing(check: Check, columns: Iterable[str]) -> tuple[str, ...]:
    """The columns that a rule names and that are not among these."""
    there = frozenset(columns)
    return tuple(name for name in columns_of(check) if name not in there)


def family_of(type_name: str) -> Family:
    """What the values of a type are."""
    return _FAMILIES.get(_SIZE.sub("", canonical(type_name)), Family.OTHER)


def canonical(type_name: str) -> str:
    """A type as PostgreSQL's `format_type` spells it: `VARCHAR( 10 )` is `character varying(10)`."""
    text = " ".join(type_name.lower().split())
    size = _SIZE.search(text)
    base = " ".join(_SIZE.sub("", text).split())
    base = _SPELLINGS.get(base, base)
    if size is None:
        return base
    word, _, rest = base.partition(" ") if base.startswith("timestamp") else (base, "", "")
    numbers = ",".join(part.strip() for part in size[1].split(","))
    if word == "numeric" and "," not in numbers:
        numbers += ",0"
    return f"{word}({numbers})" + (f" {rest}" if rest else "")


def _problem(check: Check, columns: Mapping[str, str], others: Mapping[str, Mapping[str, str]]) -> str:
    """What is wrong with one rule; empty: nothing."""
    if unknown := missing(check, columns):
        return _unknown(unknown[0], columns)
    match check:
        case HasType(column, wanted):
            actual = columns[column]
            return "" if canonical(wanted) == canonical(actual) else f"`{column}` is {actual}, not {canonical(wanted)}"
        case Matches(column):
            family = family_of(columns[column])
            return "" if family is Family.TEXT else f"`{column}` is {columns[column]}, and `regex` is for text"
        case Range(column) if family_of(columns[column]) is Family.TEXT:
            return f"`{column}` is {columns[column]}, and text has no range: use `condition`"
        case Range(column, least, most):
            bounds = tuple(bound for bound in (least, most) if bound is not None)
            return _unfit(column, columns[column], bounds, "bound")
        case InSet(column, values):
            return _unfit(column, columns[column], values, "value")
        case Fresh(column=str(column)):
            moment = family_of(columns[column]) in _MOMENTS
            return "" if moment else f"`{column}` is {columns[column]}, and `freshness` is for dates and timestamps"
        case Compare(column, _, other):
            alike = _comparable(columns[column], columns[other])
            return "" if alike else f"`{column}` is {columns[column]} and `{other}` is {columns[other]}: not comparable"
        case Exists(column, table, other) if table in others:
            return _absent(columns[column], table, other, others[table])
    return ""


def _unknown(name: str, columns: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(columns), n=1, cutoff=0.6)
    return f"column `{name}` does not exist" + (f"; did you mean `{close[0]}`?" if close else "")


def _unfit(column: str, type_name: str, values: Sequence[Value], word: str) -> str:
    """Why values cannot be compared with a column's; no value is repeated but by its position."""
    family = family_of(type_name)
    if word == "bound" and family is Family.TRUTH:
        return f"`{column}` is {type_name}, which has no range"
    for position, value in enumerate(values, 1):
        if not _fits(value, family):
            step = {
                Family.NUMBER: "no number",
                Family.TEXT: "no text (quote it)",
                Family.DATE: "no date like 2026-01-31",
                Family.TIMESTAMP: "no timestamp like 2026-01-31T12:00:00Z",
                Family.TRUTH: "neither true nor false",
            }[family]
            return f"`{column}` is {type_name}, and the {word} at place {position} is {step}"
    return ""


def _fits(value: Value, family: Family) -> bool:
    match family:
        case Family.NUMBER:
            return isinstance(value, int | float) and not isinstance(value, bool)
        case Family.TEXT:
            return isinstance(value, str)
        case Family.DATE:
            return isinstance(value, str) and bool(_DAY.fullmatch(value)) and _parses(date.fromisoformat, value)
        case Family.TIMESTAMP:
            return isinstance(value, str) and bool(_MOMENT.fullmatch(value)) and _parses(datetime.fromisoformat, value)
        case Family.TRUTH:
            return isinstance(value, bool)
    return True


def _parses(parse: Callable[[str], date], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _comparable(one: str, other: str) -> bool:
    """Whether PostgreSQL compares two types; of types that are not known here, the same one."""
    families = {family_of(one), family_of(other)}
    if families == {Family.OTHER}:
        return canonical(one) == canonical(other)
    return len(families) == 1 or families == _MOMENTS


def _absent(type_name: str, table: str, other: str, columns: Mapping[str, str]) -> str:
    if not columns:
        return f"table `{table}` does not exist, or its columns are not visible"
    if other not in columns:
        return f"`{table}`: {_unknown(other, columns)}"
    if not _comparable(type_name, columns[other]):
        return f"`{table}.{other}` is {columns[other]}, which cannot be compared with {type_name}"
    return ""

"""Rules against the columns that a table has: which of them cannot be held against it, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time

from millrace.domain.quality.rules import Compare, Fresh, HasType, InSet, Matches, Range, Rule, Value, columns_of

_TEXTS = ("text", "character varying", "character")
_NUMBERS = ("smallint", "integer", "bigint", "numeric", "real", "double precision")
_WHOLE = ("smallint", "integer", "bigint")


def problems(rules: Sequence[Rule], columns: Mapping[str, str]) -> Mapping[str, str]:
    """Why some rules cannot be held against a table.

    Args:
        rules: the rules.
        columns: the table's columns, with their types as PostgreSQL spells them.

    Returns:
        By the rule's name what is wrong; rules that fit are not there.
    """
    found = {rule.name: _problem(rule, columns) for rule in rules}
    return {name: what for name, what in found.items() if what}


def _problem(rule: Rule, columns: Mapping[str, str]) -> str:
    check = rule.check
    if isinstance(check, HasType):
        return ""  # what the column is, or that it is not there, is what the rule is about
    missing = [name for name in columns_of(check) if name not in columns]
    if missing:
        return f"the table has no column {', '.join(missing)}"
    match check:
        case Matches(column, _) if not _is(columns[column], _TEXTS):
            return f"column {column} is {columns[column]}, and no text"
        case Fresh(_, str(column)) if not columns[column].startswith(("timestamp", "date")):
            return f"column {column} is {columns[column]}, and no time"
        case InSet(column, values):
            return _unfit(column, columns[column], values)
        case Range(column, _, _) if _is(columns[column], _TEXTS):
            return f"column {column} is {columns[column]}, and texts have no range; use `condition`"
        case Range(column, least, most):
            return _unfit(column, columns[column], [each for each in (least, most) if each is not None])
        case Compare(column, _, other) if not _alike(columns[column], columns[other]):
            return f"columns {column}, {columns[column]}, and {other}, {columns[other]}, cannot be compared"
    return ""


def _is(type_: str, names: Sequence[str]) -> bool:
    return type_.partition("(")[0].strip() in names


def _alike(one: str, other: str) -> bool:
    families = (_TEXTS, _NUMBERS, ("date", "timestamp without time zone", "timestamp with time zone"))
    return one == other or any(_is(one, family) and _is(other, family) for family in families)


def _unfit(column: str, type_: str, values: Sequence[Value]) -> str:
    for value in values:
        if not _fits(type_, value):
            return f"column {column} is {type_}, which holds no {value!r}"
    return ""


def _fits(type_: str, value: Value) -> bool:
    if isinstance(value, bool):
        return type_ == "boolean"
    if _is(type_, _NUMBERS):
        return not isinstance(value, str) and not (_is(type_, _WHOLE) and isinstance(value, float) and value % 1)
    if not isinstance(value, str):
        return False
    parse = _PARSERS.get(type_)
    if parse is None:
        return _is(type_, _TEXTS) or type_ == "uuid"
    try:
        parse(value)
    except ValueError:
        return False
    return True


_PARSERS = {
    "date": date.fromisoformat,
    "timestamp with time zone": datetime.fromisoformat,
    "timestamp without time zone": datetime.fromisoformat,
    "time without time zone": time.fromisoformat,
}

"""The shape of rule files: what fields there are and what each may hold."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from millrace.declarations.fields import (
    Rule,
    Table,
    Wrong,
    bounded_duration,
    choice,
    described,
    pattern,
    whole_number,
)
from millrace.declarations.shapes import Document
from millrace.domain.formats.printable import shown
from millrace.domain.quality.rules import Comparison, Severity

MOST_VALUES = 1_000
LONGEST_PATTERN = 1_000
LONGEST_SQL = 10_000
_COLUMN = r"[A-Za-z_][A-Za-z0-9_]{0,62}"
_SHARE = re.compile(r"([1-9][0-9]{0,3})%")

_QUOTED = re.compile(r"(?<![eE])'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
_REFUSED = (
    (re.compile(r"\b[eE]'"), "a text with escapes (`E'...'`)", "write it without, or make it a view"),
    (re.compile(r"['\"]"), "a quote that is not closed", "close every quote that it opens"),
    (re.compile(r";"), "a `;`", "write one piece of SQL without it"),
    (re.compile(r"--|/\*"), "a comment", "write it as a comment of YAML, with `#`"),
    (re.compile(r"\$[A-Za-z_0-9]*\$"), "a quote of dollars", "quote with '"),
)
ColumnName = Annotated[str, pattern(_COLUMN, "a column's name", "customer_id")]
RuleName = Annotated[
    str, pattern(r"[a-z][a-z0-9_]{0,47}", "a lower-case letter and up to 47 of a-z, 0-9 and _", "amount_sane")
]
TypeName = Annotated[
    str, pattern(r"[a-z][a-z0-9 ]*(\([0-9]+(,[0-9]+)?\))?[a-z ]*(\[\])?", "a type of PostgreSQL", "numeric(12,2)")
]
Age = Annotated[timedelta, bounded_duration(timedelta(seconds=10), timedelta(days=3650), "10s to 3650d", {})]
Count = Annotated[int, whole_number(0, 10**15)]


def _scalar(value: object) -> str | int | float | bool:
    if isinstance(value, str | int | float):
        return value
    raise Wrong(f"{described(value)} is not a single value", "write text, a number, true or false")


def _values(value: object) -> tuple[str | int | float | bool, ...]:
    if not isinstance(value, list):
        raise Wrong(f"{described(value)} is not a list", "write [a, b]")
    if not value:
        raise Wrong("the list is empty", "write the values that are allowed")
    if len(value) > MOST_VALUES:
        step = "keep them in a table, and use `exists`"
        raise Wrong(f"the list has {len(value):,} values, more than {MOST_VALUES:,}", step)
    found = tuple(_scalar(each) for each in value)
    if len({_family(each) for each in found}) > 1:
        raise Wrong("the list mixes values of several kinds", "write only texts, only numbers, or only true and false")
    if len(set(found)) < len(found):
        doubled = next(each for index, each in enumerate(found) if each in found[:index])
        raise Wrong(f"`{shown(doubled)}` is in the list twice", "remove one of them")
    return found


def _family(value: object) -> str:
    return "truth" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"


def _columns(value: object) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    if not names:
        raise Wrong("the list is empty", "write the columns whose values belong together")
    found = []
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(_COLUMN, name):
            raise Wrong(f"{described(name)} is not a column's name", "write a name like `customer_id`")
        found.append(name)
    if len(set(found)) < len(found):
        raise Wrong("a column is named twice", "remove one of them")
    return tuple(found)


def _sql(value: object) -> str:
    """SQL that stays inside the statement it is put into: one piece, with its brackets and quotes closed."""
    if not isinstance(value, str) or not value.strip():
        raise Wrong(f"{described(value)} is not SQL", 'write it as text: "amount > 0"')
    text = value.strip()
    if len(text) > LONGEST_SQL:
        raise Wrong(f"the SQL has {len(text):,} characters", f"shorten it to {LONGEST_SQL:,}, or make it a view")
    bare = _QUOTED.sub("", text)
    for sign, what, step in _REFUSED:
        if sign.search(bare):
            raise Wrong(f"the SQL holds {what}", step)
    depth = 0
    for each in re.findall(r"[()]", bare):
        depth += 1 if each == "(" else -1
        if depth < 0:
            break
    if depth:
        raise Wrong("the SQL lacks a bracket", "close every bracket that it opens, and no other")
    return text


def _query(value: object) -> str:
    text = _sql(value)
    if not re.match(r"(select|with)\b", text, re.IGNORECASE):
        raise Wrong("the SQL is no query", "begin with `select`")
    fields = re.findall(r"\{\{|\}\}|\{[^{}]*\}|[{}]", text)
    if wrong := [each for each in fields if each not in ("{{", "}}", "{rows}")]:
        raise Wrong(
            f"`{shown(wrong[0])}` stands for nothing", "write `{rows}` for the rows, and `{{` and `}}` for braces"
        )
    if "{rows}" not in fields:
        raise Wrong("the SQL does not say `{rows}`", "write `from {rows}` for the rows that are looked at")
    return text


def _regex(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise Wrong(f"{described(value)} is not a regular expression", 'write it as text: "^[0-9]+$"')
    if len(value) > LONGEST_PATTERN:
        raise Wrong(f"the expression has {len(value):,} characters", f"shorten it to {LONGEST_PATTERN:,}")
    return value


def _share(value: object) -> float:
    found = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if not found or not 1 <= int(found[1]) <= 1000:
        raise Wrong(f"{described(value)} is not a share", "write a share from 1% to 1000%, as 50%")
    return int(found[1]) / 100


_TEXT = {"type": "string"}
_ANY = {"type": ["string", "number", "boolean"]}
Scalar = Annotated[Any, Rule(_scalar, _ANY)]
Sql = Annotated[str, Rule(_sql, {**_TEXT, "maxLength": LONGEST_SQL})]


class TypeDocument(Document):
    """A column of a type."""

    column: ColumnName
    type_: TypeName = Field(alias="is")


class InSetDocument(Document):
    """Values that are allowed."""

    column: ColumnName
    values: Annotated[tuple[Any, ...], Rule(_values, {"type": "array", "items": _ANY, "maxItems": MOST_VALUES})]


class RangeDocument(Document):
    """Bounds, both included."""

    column: ColumnName
    min: Scalar | None = None
    max: Scalar | None = None


class RegexDocument(Document):
    """What a text has to hold."""

    column: ColumnName
    matches: Annotated[str, Rule(_regex, {**_TEXT, "maxLength": LONGEST_PATTERN})]


class RowCountDocument(Document):
    """How many rows."""

    min: Count | None = None
    max: Count | None = None


class FreshnessDocument(Document):
    """How old the newest may be."""

    at_most: Age
    column: ColumnName | None = None


class VolumeDocument(Document):
    """How far from what is usual."""

    within: Annotated[float, Rule(_share, {**_TEXT, "pattern": f"^{_SHARE.pattern}$"})]


class CompareDocument(Document):
    """Two columns."""

    column: ColumnName
    comparison: Annotated[Comparison, choice(Comparison)] = Field(alias="is")
    to: ColumnName


class ExistsDocument(Document):
    """A column of another table."""

    column: ColumnName
    table: Table
    other: ColumnName = Field(alias="in")


class RuleDocument(Document):
    """One rule: exactly one kind, and what is about it."""

    not_null: ColumnName | None = None
    type_: TypeDocument | None = Field(default=None, alias="type")
    in_set: InSetDocument | None = None
    range: RangeDocument | None = None
    regex: RegexDocument | None = None
    unique: Annotated[tuple[str, ...] | None, Rule(_columns, {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]})] = (
        None
    )
    condition: Sql | None = None
    row_count: RowCountDocument | None = None
    freshness: FreshnessDocument | None = None
    volume: VolumeDocument | None = None
    compare: CompareDocument | None = None
    exists: ExistsDocument | None = None
    sql: Annotated[str | None, Rule(_query, {**_TEXT, "maxLength": LONGEST_SQL})] = None
    severity: Annotated[Severity, choice(Severity)] = Severity.FAIL
    where: Sql | None = None


class RulesDocument(Document):
    """A rule file: `include/quality/NAME.yaml`."""

    model_config = ConfigDict(json_schema_extra={"required": ["rules"]})

    rules: dict[RuleName, RuleDocument] = Field(default_factory=dict)

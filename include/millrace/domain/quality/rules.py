"""Rules: what the rows of a sink have to be, as a rule file declares it.

A rule is of one kind. Kinds of rows count the rows that break it; a null breaks `not_null` alone. NaN lies in no range,
equals itself, and is no bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar


class Severity(StrEnum):
    """What a broken rule does: `fail` turns the check red and opens an alarm, `warn` is told and does neither."""

    WARN = "warn"
    FAIL = "fail"


class Comparison(StrEnum):
    """How two columns of a row are compared."""

    EQUAL = "="
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="


Value = str | int | float | bool
"""What a rule file can write: a date or a time is text in ISO 8601."""


@dataclass(frozen=True, slots=True)
class NotNull:
    """The column has a value in each row."""

    word: ClassVar[str] = "not_null"
    column: str


@dataclass(frozen=True, slots=True)
class HasType:
    """The column of the table is of this type, as PostgreSQL spells it: `numeric(12,2)`."""

    word: ClassVar[str] = "type"
    column: str
    type: str


@dataclass(frozen=True, slots=True)
class InSet:
    """A value is one of these."""

    word: ClassVar[str] = "in_set"
    column: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """A value is at least `min` and at most `max`; one of them may be None. NaN is neither."""

    word: ClassVar[str] = "range"
    column: str
    min: Value | None = None
    max: Value | None = None


@dataclass(frozen=True, slots=True)
class Matches:
    """A text has a part that fits a POSIX regular expression, as PostgreSQL's operator `~` finds it."""

    word: ClassVar[str] = "regex"
    column: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Unique:
    """No two of the rows looked at have the same values in these columns; a row with a null in one has none."""

    word: ClassVar[str] = "unique"
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowCondition:
    """An SQL condition over the columns of a row, which no row makes false. One that is null is not false."""

    word: ClassVar[str] = "condition"
    sql: str


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows are looked at."""

    word: ClassVar[str] = "row_count"
    min: int | None = None
    max: int | None = None


@dataclass(frozen=True, slots=True)
class Fresh:
    """The newest of what is in the table is not older than this.

    Attributes:
        at_most: how old.
        column: the event's time, a column of timestamps; None: the time of the newest record that is done.
    """

    word: ClassVar[str] = "freshness"
    at_most: timedelta
    column: str | None = None


@dataclass(frozen=True, slots=True)
class Volume:
    """As many rows an hour as usual, give or take this share of it: 0.5 is from half to one and a half times."""

    word: ClassVar[str] = "volume"
    within: float


@dataclass(frozen=True, slots=True)
class Compare:
    """Two columns of a row, compared; a row with a null in one of them is not."""

    word: ClassVar[str] = "compare"
    column: str
    comparison: Comparison
    other: str


@dataclass(frozen=True, slots=True)
class Exists:
    """A value is found in a column of another table, `schema.table`, of the same database."""

    word: ClassVar[str] = "exists"
    column: str
    table: str
    other: str


@dataclass(frozen=True, slots=True)
class Query:
    """An SQL query whose every row is a fault. `{rows}` stands for the rows looked at."""

    word: ClassVar[str] = "sql"
    sql: str


Check = (
    NotNull
    | HasType
    | InSet
    | Range
    | Matches
    | Unique
    | RowCondition
    | RowCount
    | Fresh
    | Volume
    | Compare
    | Exists
    | Query
)
KINDS: Mapping[str, type[Check]] = {
    kind.word: kind
    for kind in (
        NotNull,
        HasType,
        InSet,
        Range,
        Matches,
        Unique,
        RowCondition,
        RowCount,
        Fresh,
        Volume,
        Compare,
        Exists,
        Query,
    )
}
"""Every kind by the word that a rule file has for it."""
OF_THE_WHOLE = (HasType, RowCount, Fresh, Volume)
"""Kinds that say something of the table or of all rows together: they count no rows that break them, and name none."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        name: its name in the rule file.
        check: what has to be.
        severity: what happens where it is not.
        where: an SQL condition that picks the rows it is about; None: all.
        file: the rule file, relative to the project's root.
        line: where it begins there, from 1.
    """

    name: str
    check: Check
    severity: Severity = Severity.FAIL
    where: str | None = None
    file: str = ""
    line: int = 0

    @property
    def kind(self) -> str:
        """The word for what it checks."""
        return self.check.word

    @property
    def place(self) -> str:
        """`FILE:LINE`."""
        return f"{self.file}:{self.line}"


def columns_of(check: Check) -> tuple[str, ...]:
    """The columns of the table that a check names; those inside SQL are not known."""
    match check:
        case Unique(columns):
            return columns
        case Compare(column, _, other):
            return (column, other)
        case NotNull() | HasType() | InSet() | Range() | Matches() | Exists():
            return (check.column,)
        case Fresh(column=column):
            return () if column is None else (column,)
    return ()


@dataclass(frozen=True, slots=True)
class StreamQuality:
    """How the quality of a stream's table is checked.

    Attributes:
        name: the rule file's name: `include/quality/NAME.yaml`.
        rules: its rules, in their order.
        every: how often.
        keep: for how long evidence is kept in the bucket.
        connection: the Connection of a role that may only read; None: that of the sink.
    """

    name: str
    rules: tuple[Rule, ...]
    every: timedelta = timedelta(hours=1)
    keep: timedelta = timedelta(days=90)
    connection: str | None = None
